/* Selects the clock, and reads the CPU time of threads. */
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "hook.h"

uint64_t thread_cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

#if defined(__x86_64__)
/* Read the name of the kernel's clock source, "" if unavailable. Reading the file in Ruby
   would release the GVL, which costs 0.1 s per busy thread. */
static void clock_source(char *name, size_t size) {
  int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
  ssize_t length = fd < 0 ? 0 : read(fd, name, size - 1);
  if (fd >= 0)
    close(fd);
  name[length > 0 ? length : 0] = 0;
}

static int is_ticks_source(const char *name) {
  static const char *const sources[] = {"tsc\n", "kvm-clock\n", "hyperv_clocksource_tsc_page\n", "xen\n"};
  for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
    if (!strcmp(name, sources[i]))
      return 1;
  return 0;
}

/* Invariant TSC: constant_tsc and nonstop_tsc in /proc/cpuinfo. */
static int ticks_on(void) {
  unsigned a, b, c, d;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && d >> 8 & 1;
}
#endif

/* The counter is used if the processor reports it as invariant, and if the kernel (or the
   hypervisor, through its page) uses it. */
enum clock best_clock(void) {
#if defined(__x86_64__)
  char name[64];
  clock_source(name, sizeof name);
  return ticks_on() && is_ticks_source(name) ? CLOCK_TSC : CLOCK_NS;
#elif defined(__aarch64__)
  return CLOCK_CNTVCT;
#else
  return CLOCK_NS;
#endif
}
