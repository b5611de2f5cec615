#define roundup_pow_of_two(n) (1UL << (64 - __builtin_clzl((n) - 1)))
