#ifndef RBTRACE_KCONFIG_H
#define RBTRACE_KCONFIG_H
#define CONFIG_BPF_SYSCALL 1
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#endif
