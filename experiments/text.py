"""A text of your own, with the settings of the demo: a file, or the texts of a table.

command   tlite train text --path my.txt   (or a CSV, TSV, JSON Lines or Parquet file, or a folder
          of `save_to_disk`: --text-column names the column with the texts)
machine   as the demo
time      as the demo, whatever the text's length
result    of the text
"""

import dataclasses

from experiments.demo import experiment as demo
from tlite.data import TextFile

experiment = dataclasses.replace(demo, name="text", data=TextFile())
