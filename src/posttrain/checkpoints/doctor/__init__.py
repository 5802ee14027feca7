"""The doctor: what is wrong with a checkpoint folder, here and in other stacks, and a copy that is mended.

`examine` looks, and drafts a mended copy in memory while it does; `write_copy` writes the draft. The folder
itself is never touched.
"""

from posttrain.checkpoints.doctor.examination import Examination, examine
from posttrain.checkpoints.doctor.findings import Finding
from posttrain.checkpoints.doctor.writing import write_copy

__all__ = ["Examination", "Finding", "examine", "write_copy"]
