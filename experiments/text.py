"""A text file of your own, with the settings of the demo.

command   tlite train text --path my.txt
"""

import dataclasses

from experiments.demo import experiment as demo
from tlite.data import TextFile

experiment = dataclasses.replace(demo, name="text", data=TextFile())
