/*
 * The loader (program.py) fills map descriptors, and numbers that depend on the machine
 * or the command, into compiled programs. Each is a 64-bit load of a marked value. The
 * verifier treats it as a constant, and removes the branches that the constant excludes.
 * A flag costs nothing at a hit, and one compiled program serves all commands.
 *
 * The result must not depend on the machine that compiles, so maps and helpers that bcc
 * would look up there are identified by numbers.
 *
 *   AT_LOAD_MARK, AT_LOAD_*  the mark, and the numbers of the names (abi.py)
 *   SIZE_*, OFFSET_*         of the structs that Python packs or decodes (abi.py)
 */
#ifndef AT_LOAD /* a program may include this file twice */
#include <uapi/linux/ptrace.h>

#define AT_LOAD(name)                                                          \
  ({                                                                           \
    u64 at_load_;                                                              \
    asm("%0 = %1 ll" : "=r"(at_load_) : "i"(AT_LOAD_MARK + AT_LOAD_##name));   \
    at_load_;                                                                  \
  })

#define LOOKUP(map, key) bpf_map_lookup_elem((void *)AT_LOAD(map), key)
#define UPDATE(map, key, value)                                                \
  bpf_map_update_elem((void *)AT_LOAD(map), key, value, 0)
#define INSERT(map, key, value)                                                \
  bpf_map_update_elem((void *)AT_LOAD(map), key, value, 1 /* BPF_NOEXIST */)
#define DELETE(map, key) bpf_map_delete_elem((void *)AT_LOAD(map), key)

/* abi.py declares the same struct for Python. */
#define CHECK_SIZE(type)                                                       \
  _Static_assert(sizeof(struct type) == SIZE_##type, "abi.py: size of " #type)
#define CHECK(type, field)                                                     \
  _Static_assert(__builtin_offsetof(struct type, field) ==                     \
                     OFFSET_##type##_##field,                                  \
                 "abi.py: " #type "." #field)

#define NO_WAKEUP 1 /* BPF_RB_NO_WAKEUP: no reader sleeps on the ring */

static long (*read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*read_user_string)(void *to, u32 size, const void *from) =
    (void *)114;
static void *(*reserve_record)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*submit_record)(void *record, u64 flags) = (void *)132;
static u64 (*attach_cookie)(void *ctx) = (void *)174;

static __always_inline void count(u32 counter, u64 number) {
  u64 *cell = LOOKUP(counters, &counter);
  if (cell)
    __sync_fetch_and_add(cell, number);
}

static __always_inline void count_one(u32 counter) {
  count(counter, 1);
}
#endif
