/* Registers at the entry of a traced function, in the layout BPF programs see. */
#ifndef SYSMETER_SHIM_PTRACE_H
#define SYSMETER_SHIM_PTRACE_H
#if defined(__x86_64__)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx;
	unsigned long r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__aarch64__)
struct user_pt_regs {
	unsigned long long regs[31];
	unsigned long long sp, pc, pstate;
};
struct pt_regs { /* the beginning of the kernel's own */
	unsigned long long regs[31];
	unsigned long long sp, pc, pstate;
	unsigned long long orig_x0;
};
#else
struct pt_regs;
#endif
#endif
