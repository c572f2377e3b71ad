/* A nominal kernel version. bcc compares against it to choose between helpers; tracepoint programs are
 * not checked against the running kernel's version, so one constant serves every host. */
#ifndef SYSMETER_SHIM_VERSION_H
#define SYSMETER_SHIM_VERSION_H
#define KERNEL_VERSION(major, minor, patch) (((major) << 16) + ((minor) << 8) + (patch))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 8, 0)
#endif
