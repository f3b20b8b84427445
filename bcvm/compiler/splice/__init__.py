"""Tier 2: region kernels spliced from machine-code stencils (copy and patch, with registers renamed).

Each elementwise op is compiled once by LLVM with fixed registers (`stencils`); where its code names a register is found by `decode`. A region is then
a walk over its steps that picks registers and copies code (`splicer`), some tens of microseconds, no LLVM. `library` keeps the stencils, on disk too.
"""
