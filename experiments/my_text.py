"""Generate your own text with the settings of the demo: a file, or the texts of a table.

command   tlite train my_text --path my.txt   (or a table, CSV, TSV, JSON Lines or Parquet, or a
          folder of `save_to_disk`: --text-column names the column with the texts)
time      as the demo, whatever the text's length
result    of the text
"""

from experiments.demo import experiment as demo
from tlite import override
from tlite.data import TextFile

experiment = override(demo, {"name": "my_text", "data": TextFile()})
