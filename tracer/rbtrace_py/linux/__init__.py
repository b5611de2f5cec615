"""What Linux tells of a process: maps, files, ELF notes, namespaces, BTF."""
