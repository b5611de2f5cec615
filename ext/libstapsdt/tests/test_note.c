/* SPDX-License-Identifier: MIT */
#include <elf.h>

#include "harness.h"
#include "note.h"

static const char all_x86_64[] =
    "-8@%rdi 8@%rsi -8@%rdx 8@%rcx -8@%r8 8@%r9 -8@8(%rsp) 8@16(%rsp) "
    "-8@24(%rsp) 8@32(%rsp) -8@40(%rsp) 8@48(%rsp)";
static const char all_aarch64[] =
    "-8@x0 8@x1 -8@x2 8@x3 -8@x4 8@x5 -8@x6 8@x7 -8@[sp] 8@[sp, 8] "
    "-8@[sp, 16] 8@[sp, 24]";

static void operands(uint16_t machine, const char *expected) {
  char text[SDT_ARGUMENTS_SIZE] = "";
  for (size_t i = 0; i < SDT_MAX_OPERANDS; i++)
    CHECK_EQ(sdt_append_argument(text, machine, i, i % 2 ? 8 : -8), 0);
  CHECK_STR(text, expected);
}

static void twelve_operands(void) {
  CHECK_HELPER(operands(EM_X86_64, all_x86_64));
  CHECK_HELPER(operands(EM_AARCH64, all_aarch64));
}

static void sized_operands(void) {
  static const int widths[] = {1, -1, 2, -2, 4, -4};
  static const int wide[] = {-1, 2, 4, 8, 2, 1};
  char text[SDT_ARGUMENTS_SIZE] = "";
  for (size_t i = 0; i < 6; i++)
    CHECK_EQ(sdt_append_argument(text, EM_X86_64, i, widths[i]), 0);
  CHECK_STR(text, "1@%dil -1@%sil 2@%dx -2@%cx 4@%r8d -4@%r9d");
  text[0] = 0;
  for (size_t i = 0; i < 6; i++)
    CHECK_EQ(sdt_append_argument(text, EM_X86_64, i, wide[i]), 0);
  CHECK_STR(text, "-1@%dil 2@%si 4@%edx 8@%rcx 2@%r8w 1@%r9b");
  text[0] = 0;
  for (size_t i = 0; i < 6; i++)
    CHECK_EQ(sdt_append_argument(text, EM_AARCH64, i, widths[i]), 0);
  CHECK_STR(text, "1@x0 -1@x1 2@x2 -2@x3 4@x4 -4@x5");
}

static void unknown_operands(void) {
  static const int widths[] = {0, 3, 5, 16, -16, 255, -2147483647 - 1};
  char text[SDT_ARGUMENTS_SIZE] = "";
  for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
    CHECK_EQ(sdt_append_argument(text, EM_X86_64, 0, widths[i]), -1);
  CHECK_EQ(sdt_append_argument(text, EM_X86_64, SDT_MAX_OPERANDS, 8), -1);
  CHECK_STR(text, "");
}

static void stapsdt_bytes(void) {
  const struct sdt_description description = {
      .provider = "shop", .name = "sold", .arguments = "-8@%rdi"};
  unsigned char note[64];
  memset(note, 0xee, sizeof(note));
  CHECK_EQ(sdt_stapsdt_note_size(&description), 64);
  sdt_stapsdt_note_write(&description, 0x1234, 0x56, note);

  static const unsigned char head[44] = {
      8,    0,    0,   0,   42,  0,   0,   0,   3,   0, 0, 0,
      's',  't',  'a', 'p', 's', 'd', 't', 0,   0x34, 0x12, 0, 0,
      0,    0,    0,   0,   0x56};
  CHECK(memcmp(note, head, sizeof(head)) == 0);
  CHECK(memcmp(note + 44, "shop\0sold\0-8@%rdi", 18) == 0);
  CHECK_EQ(note[62], 0xee); /* padding is not written: it is zero in the file */
}

static void rbtrace_bytes(void) {
  const sdt_operand operands[] = {
      {"duration_ns", SDT_INTEGER, SDT_DURATION},
      {"outcome", SDT_INTEGER, SDT_OUTCOME},
      {NULL, SDT_STRING, SDT_ARGUMENT},
      {"", SDT_BOOL, SDT_ARGUMENT},
  };
  const struct sdt_description description = {
      .provider = "shop", .name = "sold", .rbtrace = 1,
      .role = SDT_SPAN_END, .operands = operands, .count = 4};
  static const unsigned char expected[] = {
      8, 0, 0, 0, 42, 0, 0, 0, 1, 0, 0, 0,
      'r', 'b', 't', 'r', 'a', 'c', 'e', 0,
      0x34, 0x12, 0, 0, 0, 0, 0, 0, 1, 0, 2, 4,
      13, 1, 1, 'd', 'u', 'r', 'a', 't', 'i', 'o', 'n', '_', 'n', 's',
      9, 2, 1, 'o', 'u', 't', 'c', 'o', 'm', 'e',
      2, 0, 2,
      2, 0, 5,
  };
  unsigned char note[64] = {0};
  CHECK_EQ(sizeof(expected), 62);
  CHECK_EQ(sdt_rbtrace_note_size(&description), 64);
  sdt_rbtrace_note_write(&description, 0x1234, note);
  CHECK(memcmp(note, expected, sizeof(expected)) == 0);
}

static void method_bytes(void) {
  const struct sdt_description description = {
      .provider = "till", .name = "pay_bang", .rbtrace = 1,
      .role = SDT_SPAN_BEGIN, .method = "Till#pay!"};
  static const unsigned char expected[] = {
      8, 0, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0,
      'r', 'b', 't', 'r', 'a', 'c', 'e', 0,
      0x34, 0x12, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0,
      11, 4, 2, 'T', 'i', 'l', 'l', '#', 'p', 'a', 'y', '!',
  };
  unsigned char note[44] = {0};
  CHECK_EQ(sizeof(expected), 44);
  CHECK_EQ(sdt_rbtrace_note_size(&description), 44);
  sdt_rbtrace_note_write(&description, 0x1234, note);
  CHECK(memcmp(note, expected, sizeof(expected)) == 0);
}

static void no_rbtrace(void) {
  const struct sdt_description description = {
      .provider = "shop", .name = "sold", .arguments = ""};
  CHECK_EQ(sdt_rbtrace_note_size(&description), 0);
}

const struct test note_tests[] = {
    {"twelve operands on both machines", twelve_operands},
    {"operands of 1, 2, 4 and 8 bytes", sized_operands},
    {"operands that are none", unknown_operands},
    {"a stapsdt note byte for byte", stapsdt_bytes},
    {"an rbtrace note byte for byte", rbtrace_bytes},
    {"the note of a method byte for byte", method_bytes},
    {"probes of the original interface have no rbtrace note", no_rbtrace},
    {NULL, NULL},
};
