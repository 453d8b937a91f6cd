/* Preloaded: CLOCK_MONOTONIC and CLOCK_REALTIME plus the nanoseconds that stand in a file, so that a test can move a
   process's clocks while it runs. VRAMP_TEST_CLOCK names the file, eight bytes for each clock; a file of eight
   moves the first alone, and without one nothing is changed. The kernel's own timers and time stamps stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int (*real_clock_gettime)(clockid_t, struct timespec *);
static volatile int64_t *offset_ns;

__attribute__((constructor)) static void map_offset(void) {
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("VRAMP_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, 2 * sizeof *offset_ns, PROT_READ, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) offset_ns = page;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_clock_gettime) map_offset();
    int failed = real_clock_gettime(clock, now);
    if (failed || !offset_ns || (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME)) return failed;
    int64_t moved = now->tv_sec * 1000000000LL + now->tv_nsec + offset_ns[clock == CLOCK_REALTIME];
    now->tv_sec = moved / 1000000000LL;
    now->tv_nsec = moved % 1000000000LL;
    return 0;
}
