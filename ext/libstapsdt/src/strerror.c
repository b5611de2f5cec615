/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>

#include "common.h"

static const char *const messages[] = {
#define SDT_TEXT(code, message) [code] = message,
    SDT_ERRORS(SDT_TEXT)
#undef SDT_TEXT
};

SDT_EXPORT const char *sdt_version(void) { return SDT_VERSION; }

SDT_EXPORT const char *sdt_strerror(int status) {
  if (status < 0 || (size_t)status >= sizeof(messages) / sizeof(messages[0]))
    return "unknown error";
  return messages[status];
}

int sdt_fail(sdt_error *error, sdt_status status, const char *format, ...) {
  if (!error)
    return status;

  error->status = status;
  /* %m in the detail reads errno last, so nothing before may change it. */
  char detail[SDT_MESSAGE_SIZE];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(detail, sizeof(detail), format, arguments);
  va_end(arguments);
  snprintf(error->message, sizeof(error->message), "%s%s%.160s",
           sdt_strerror(status), *detail ? ": " : "", detail);
  return status;
}
