/* Static USDT sites, which trap only while a tracer is attached. */
#include "hook.h"

#if defined(__x86_64__)
#define ADDRESS ".8byte"
#define NOP "nop"
#elif defined(__aarch64__)
#define ADDRESS ".8byte"
#define NOP "nop"
#else
#error "the agent knows x86-64 and aarch64"
#endif

__asm__(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
        ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n"
        "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n");

/* An argument's entry in the rbtrace note: an Integer with a name. */
#define NAMED(length, name) ".byte 2 + " #length ", 0, 1\n.ascii \"" name "\"\n"

/*
 * A probe of provider rbtrace. Its rbtrace note names the arguments (docs/probes.md) and
 * comes first. Every tool reads its stapsdt note.
 */
#define SITE(name, count, names, places, ...)                                  \
  __asm__ volatile("990: " NOP "\n"                                            \
                   ".pushsection .note.rbtrace,\"\",\"note\"\n"                \
                   ".balign 4\n.4byte 8, 9982f - 9981f, 1\n"                   \
                   ".asciz \"rbtrace\"\n"                                      \
                   "9981: " ADDRESS " 990b\n.2byte 1\n.byte 0, " #count "\n"   \
                   names "9982: .balign 4\n.popsection\n"                      \
                   ".pushsection .note.stapsdt,\"\",\"note\"\n"                \
                   ".balign 4\n.4byte 8, 992f - 991f, 3\n"                     \
                   ".asciz \"stapsdt\"\n"                                      \
                   "991: " ADDRESS " 990b, _.stapsdt.base, 0\n"                \
                   ".asciz \"rbtrace\"\n.asciz \"" name "\"\n"                 \
                   ".asciz \"" places "\"\n"                                   \
                   "992: .balign 4\n.popsection\n"                             \
                   :                                                           \
                   : __VA_ARGS__)

#define FRAME_NAMES NAMED(5, "owner") NAMED(2, "id") NAMED(2, "ec") NAMED(5, "depth")
#define FRAME_PLACES "8@%0 8@%1 8@%2 8@%3"
#define FRAME_VALUES "r"(owner), "r"(id), "r"(ec), "r"(depth)

void site_entry(uint64_t owner, uint64_t id, const char *ec, uint64_t depth) {
  SITE("method__entry", 4, FRAME_NAMES, FRAME_PLACES, FRAME_VALUES);
}

void site_c_entry(uint64_t owner, uint64_t id, const char *ec, uint64_t depth) {
  SITE("cmethod__entry", 4, FRAME_NAMES, FRAME_PLACES, FRAME_VALUES);
}

void site_return(uint64_t owner, uint64_t id, const char *ec,
                              uint64_t depth, int64_t duration) {
  SITE("method__return", 5, FRAME_NAMES NAMED(11, "duration_ns"),
       FRAME_PLACES " -8@%4", FRAME_VALUES, "r"(duration));
}

void site_c_return(uint64_t owner, uint64_t id, const char *ec,
                                uint64_t depth, int64_t duration) {
  SITE("cmethod__return", 5, FRAME_NAMES NAMED(11, "duration_ns"),
       FRAME_PLACES " -8@%4", FRAME_VALUES, "r"(duration));
}

void site_gc_begin(const char *ec) {
  SITE("gc__begin", 1, NAMED(2, "ec"), "8@%0", "r"(ec));
}

void site_gc_end(const char *ec, int64_t duration) {
  SITE("gc__end", 2, NAMED(2, "ec") NAMED(11, "duration_ns"), "8@%0 -8@%1",
       "r"(ec), "r"(duration));
}

void site_raise(uint64_t owner, uint64_t exception, const char *ec) {
  SITE("raise", 3, NAMED(5, "owner") NAMED(9, "exception") NAMED(2, "ec"),
       "8@%0 8@%1 8@%2", "r"(owner), "r"(exception), "r"(ec));
}

void site_object(uint64_t owner, uint64_t object, const char *ec) {
  SITE("object", 3, NAMED(5, "owner") NAMED(6, "object") NAMED(2, "ec"),
       "8@%0 8@%1 8@%2", "r"(owner), "r"(object), "r"(ec));
}
