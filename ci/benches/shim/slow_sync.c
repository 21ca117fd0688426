/* A volume whose syncs take longer: loaded with LD_PRELOAD, it delays every fsync and fdatasync by
 * SLOW_SYNC_MS milliseconds. It does nothing else. Syscalls made without libc pass by it; the bench checks
 * that the delay took effect before it uses the figures. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

static void delay(void) {
  static long ms = -1;
  if (ms < 0) {
    const char *s = getenv("SLOW_SYNC_MS");
    ms = s ? atol(s) : 0;
  }
  struct timespec t = {ms / 1000, (ms % 1000) * 1000000L};
  while (nanosleep(&t, &t) == -1 && errno == EINTR) {
  }
}

#define SLOWED(name)                                     \
  int name(int fd) {                                     \
    static int (*real)(int);                             \
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, #name); \
    delay();                                             \
    return real(fd);                                     \
  }

SLOWED(fsync)
SLOWED(fdatasync)
