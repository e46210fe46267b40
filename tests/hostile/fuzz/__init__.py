"""`make fuzz`: every parser that reads what another wrote, with inputs that were right once.

Nothing but the declared errors, within 256 MB and 2 s of processor time an input (engine.py). The table of parsers is
table.py; a violation that was found and mended stays as a case in cases/.
"""
