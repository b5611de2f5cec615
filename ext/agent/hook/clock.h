/* Time in ticks of the processor's counter, or in nanoseconds. */

static uint64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

NEVER_INLINE uint64_t thread_cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

ALWAYS_INLINE uint64_t ticks_of(uint32_t clock) {
#if defined(__x86_64__)
  if (likely(clock == CLOCK_TSC))
    return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  if (likely(clock == CLOCK_CNTVCT)) {
    uint64_t now;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
  }
#endif
  return monotonic_ns();
}

ALWAYS_INLINE uint64_t ticks(void) { return ticks_of(state.config.clock); }

/* Counters of two processors may differ by a few ticks. */
ALWAYS_INLINE uint64_t ticks_since(uint64_t start, uint64_t now) {
  return likely(now > start) ? now - start : 0;
}

ALWAYS_INLINE uint64_t ns_of(uint64_t ticks) {
  return (uint64_t)(((unsigned __int128)ticks * state.config.mult) >> 32);
}

#if defined(__x86_64__)
/* The name of the kernel's clock source, "" where it is not to be had. To read a file in
   Ruby gives up the GVL, and so costs 0.1 s for every busy thread. */
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

/* The counter is trusted where the processor says that it ticks on, and the kernel (or
   the hypervisor, through its page) uses it. */
static enum clock best_clock(void) {
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
