"""What to change: pure rules from an Analysis to findings.

Where kernels or the batch change, the saving comes from `analysis/forecast`: the replay of the steps, or the mean step.
Where the waiting for the host goes (`host`), it is that idle time as measured.
"""
