#ifndef RBTRACE_PTRACE_H
#define RBTRACE_PTRACE_H
#if defined(__TARGET_ARCH_arm64) || defined(__aarch64__)
struct user_pt_regs {
  unsigned long long regs[31];
  unsigned long long sp;
  unsigned long long pc;
  unsigned long long pstate;
};
#define pt_regs user_pt_regs
#else
struct pt_regs {
  unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
  unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#endif
#endif
