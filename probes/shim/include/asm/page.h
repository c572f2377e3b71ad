/* The page size, by which bcc sizes ring buffers. The compiler is told the real one with -DPAGE_SIZE. */
#ifndef SYSMETER_SHIM_PAGE_H
#define SYSMETER_SHIM_PAGE_H
#ifndef PAGE_SIZE
#define PAGE_SIZE 4096
#endif
#endif
