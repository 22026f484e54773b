/* A clock that is set while processes run: preloaded, it adds the seconds that the file ANMI_CLOCK holds to the date.

Looked up again every second of the clock that goes on. Debian's libfaketime does the same, but its 0.9.10 ends sleeps
of Python with "invalid argument" where that clock is left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef int (*clock_gettime_t)(clockid_t, struct timespec *);

static int gettime(clockid_t clock, struct timespec *now) {
  static clock_gettime_t real;
  if (!real) real = (clock_gettime_t)dlsym(RTLD_NEXT, "clock_gettime");
  return real(clock, now);
}

static long shift(void) {
  static long seconds, looked = -1;
  struct timespec now;
  gettime(CLOCK_MONOTONIC, &now);
  if (now.tv_sec != looked) {
    looked = now.tv_sec;
    char text[32] = {0};
    int file = open(getenv("ANMI_CLOCK"), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
      if (read(file, text, sizeof text - 1) > 0) seconds = atol(text);
      close(file);
    }
  }
  return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = gettime(clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
  return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec precise;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *kept) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (kept) *kept = now.tv_sec;
  return now.tv_sec;
}
