"""Records a generation run as it is: `traceanalyzer collect [options] -- COMMAND...`.

Standard library only, Python 3.8 and newer, no import of anything else in this project: the same files make
`collector.pyz`, which runs where nothing is installed. What stands in `inside/` is loaded by the command's own
processes; everything else runs in the supervisor. How the two talk is written in docs/adr/0009-collector.md.
"""
