/*
 * A program with probes as systemtap's header would make them, without the
 * header: three sites of one probe, one with a semaphore, one of no operands.
 * Says "ready" and waits until its standard input ends.
 */
#include <stdio.h>
#include <unistd.h>

unsigned short shop_paid_semaphore __attribute__((section(".probes")));

#define PROBE(provider, name, semaphore, operands, ...)                        \
  __asm__ volatile("990: nop\n"                                                \
                   ".pushsection .note.stapsdt,\"\",\"note\"\n"                \
                   ".balign 4\n"                                               \
                   ".4byte 992f-991f, 994f-993f, 3\n"                          \
                   "991: .asciz \"stapsdt\"\n"                                 \
                   "992: .balign 4\n"                                          \
                   "993: .8byte 990b\n"                                        \
                   ".8byte _.stapsdt.base\n"                                   \
                   ".8byte " semaphore "\n"                                    \
                   ".asciz \"" provider "\"\n"                                 \
                   ".asciz \"" name "\"\n"                                     \
                   ".asciz \"" operands "\"\n"                                 \
                   "994: .balign 4\n"                                          \
                   ".popsection\n"                                             \
                   ".ifndef _.stapsdt.base\n"                                  \
                   ".pushsection .stapsdt.base,\"aG\",\"progbits\","           \
                   ".stapsdt.base,comdat\n"                                    \
                   ".weak _.stapsdt.base\n"                                    \
                   ".hidden _.stapsdt.base\n"                                  \
                   "_.stapsdt.base: .space 1\n"                                \
                   ".size _.stapsdt.base, 1\n"                                 \
                   ".popsection\n"                                             \
                   ".endif\n" ::__VA_ARGS__)

static void __attribute__((noinline)) sell(int id, const char *sku) {
  PROBE("shop", "sold", "0", "-4@%k0 8@%1", "r"(id), "r"(sku));
  PROBE("shop", "sold", "0", "-4@%0 8@%1", "n"(-5), "m"(sku));
  PROBE("shop", "sold", "0", "-2@%w0", "r"(id));
  PROBE("shop", "paid", "shop_paid_semaphore", "8@%0", "m"(sku));
  PROBE("shop", "idle", "0", "", "r"(id));
}

int main(int argc, char **argv) {
  char byte;
  if (argc > 100)
    sell(argc, argv[0]);
  puts("ready");
  fflush(stdout);
  return read(0, &byte, 1) < 0;
}
