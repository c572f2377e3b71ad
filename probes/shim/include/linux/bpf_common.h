/* Instruction classes of the classic filter machine, for which bcc's BPF header looks here. Unused. */
