/* A link with a delay between two network namespaces, for kernels without netem: hands each packet of one
   TUN device to the other one a number of microseconds after it came.
   Usage: link DEVICE DEVICE MICROSECONDS. Prints a line once the devices are there, and runs until it is
   killed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

/* A packet never waits behind a later one: the delay is the same for all. */
enum { SLOTS = 8192, LONGEST = 2048 };

struct line {
    int from, to;
    unsigned first, next;
    long long due[SLOTS];
    ssize_t length[SLOTS];
    char bytes[SLOTS][LONGEST];
};

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int opened(const char *name) {
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
    if (device < 0 || ioctl(device, TUNSETIFF, &request) < 0) {
        perror(name);
        exit(1);
    }
    return device;
}

int main(int count, char **words) {
    static struct line lines[2];
    if (count != 4) {
        fputs("usage: link DEVICE DEVICE MICROSECONDS\n", stderr);
        return 2;
    }
    int devices[2] = {opened(words[1]), opened(words[2])};
    long long delay = atoll(words[3]) * 1000;
    for (int i = 0; i < 2; i++) {
        lines[i].from = devices[i];
        lines[i].to = devices[1 - i];
    }
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* wakes in time */
    puts("ready");
    fflush(stdout);
    for (;;) {
        long long wait = 1000000000;
        for (int i = 0; i < 2; i++) {
            struct line *line = &lines[i];
            while (line->next - line->first < SLOTS) {
                unsigned slot = line->next % SLOTS;
                ssize_t length = read(line->from, line->bytes[slot], LONGEST);
                if (length <= 0) break;
                line->length[slot] = length;
                line->due[slot] = now() + delay;
                line->next++;
            }
            long long due = 0;
            while (line->first != line->next && (due = line->due[line->first % SLOTS] - now()) <= 0) {
                unsigned slot = line->first++ % SLOTS;
                if (write(line->to, line->bytes[slot], line->length[slot]) < 0) continue; /* lost, as on a link */
            }
            if (line->first != line->next && due < wait) wait = due;
        }
        struct pollfd ready[2] = {{devices[0], POLLIN, 0}, {devices[1], POLLIN, 0}};
        struct timespec limit = {wait / 1000000000, wait % 1000000000};
        ppoll(ready, 2, &limit, NULL);
    }
}
