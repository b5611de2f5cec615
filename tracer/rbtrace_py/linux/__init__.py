"""Linux processes: maps, files, ELF notes, namespaces, BTF."""
