"""What each section of the page, the Markdown and the terminal shows, as plain data: figures printed, words looked up.

One module per section; the renderers lay their views out and compute nothing. What could be wrong: see each module.

    pieces        what several of them share
    summary       the first screen
    phase_table   prefill against decode
    bars          the ledger, the decode floor, the prefill ideal
    strip         the steps in time
    charts        the roofline, as SVG
    kernel_table  kernels by wasted time; `kernel_names` shortens their names
    appendix      devices, traces, options
"""
