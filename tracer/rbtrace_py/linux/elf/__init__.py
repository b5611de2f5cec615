"""ELF files: headers, USDT notes, operands, symbols, and core files."""
