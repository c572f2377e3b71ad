/* The build configuration, reduced to the one symbol that bcc's helper header asks for. */
#ifndef SYSMETER_SHIM_KCONFIG_H
#define SYSMETER_SHIM_KCONFIG_H
#define CONFIG_BPF_SYSCALL 1
#endif
