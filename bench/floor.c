// The floor: what a reader that does nothing but read costs and how late it is, on the same streams.
//
//   floor PORT STREAMS STAGGER_US [CPU]
//
// Opens all connections, then sends one request each, at once or spread evenly over STAGGER_US, and stamps every read.
// Prints one line of JSON: CPU and wall seconds from the first request to the last end; then, a line a stream, its number,
// when its request was sent, and [arrival, bytes] of each read; the bytes themselves follow, stream after stream.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 1 << 18, READS = 4096, EVENTS = 512 };

typedef struct {
    int fd, size, reads, done;
    double due, sent;
    double at[READS];
    int bytes[READS];
    char data[ROOM];
} Stream;

static double clock_s(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "floor PORT STREAMS STAGGER_US [CPU]\n");
        return 2;
    }
    int count = atoi(argv[2]), poll = epoll_create1(0), left = count, started = 0;
    double stagger = atof(argv[3]) / 1e6;
    if (argc > 4) {
        cpu_set_t cpus;
        CPU_ZERO(&cpus);
        CPU_SET(atoi(argv[4]), &cpus);
        if (sched_setaffinity(0, sizeof cpus, &cpus)) die("sched_setaffinity");
    }
    prctl(PR_SET_TIMERSLACK, 1);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    Stream *streams = calloc(count, sizeof *streams);
    char(*requests)[512] = calloc(count, sizeof *requests);
    if (!streams || !requests) die("calloc");
    memset(streams, 1, count * sizeof *streams); // its pages are there before the clock starts
    for (int i = 0; i < count; i++) {
        Stream *s = &streams[i];
        s->size = s->reads = s->done = 0;
        s->fd = socket(AF_INET, SOCK_STREAM, 0);
        int on = 1;
        setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (connect(s->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, s->fd, &event)) die("epoll_ctl");
        char body[256];
        int size = snprintf(body, sizeof body, "{\"model\":\"m\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"stream-%d\"}]}", i);
        snprintf(requests[i], sizeof requests[i], "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s", size, body);
    }
    usleep(50000); // the server has accepted them all
    double begin = clock_s(CLOCK_MONOTONIC), cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < count; i++) streams[i].due = begin + stagger * i / count;
    struct epoll_event events[EVENTS];
    while (left) {
        double now = clock_s(CLOCK_MONOTONIC);
        for (; started < count && streams[started].due <= now; started++) {
            Stream *s = &streams[started];
            int size = (int)strlen(requests[started]);
            s->sent = clock_s(CLOCK_MONOTONIC); // before: the server that this wakes may take the core at once
            if (send(s->fd, requests[started], size, 0) != size) die("send");
        }
        double wait = started < count ? streams[started].due - clock_s(CLOCK_MONOTONIC) : 10;
        if (wait < 0) wait = 0;
        struct timespec timeout = {(time_t)wait, (long)((wait - (time_t)wait) * 1e9)};
        int found = epoll_pwait2(poll, events, EVENTS, &timeout, NULL);
        if (!found && started == count) {
            fprintf(stderr, "nothing came for 10 s\n");
            return 1;
        }
        for (int i = 0; i < found; i++) {
            Stream *s = events[i].data.ptr;
            ssize_t got = recv(s->fd, s->data + s->size, ROOM - s->size, 0);
            if (got < 0) die("recv");
            if (!got) {
                close(s->fd);
                s->done = 1;
                left--;
                continue;
            }
            if (s->reads == READS) exit(3);
            s->at[s->reads] = clock_s(CLOCK_MONOTONIC);
            s->bytes[s->reads++] = (int)got;
            s->size += (int)got;
        }
    }
    cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("{\"cpu_s\":%.6f,\"wall_s\":%.6f}\n", cpu, clock_s(CLOCK_MONOTONIC) - begin);
    for (int i = 0; i < count; i++) {
        Stream *s = &streams[i];
        printf("{\"stream\":%d,\"scheduled\":%.9f,\"sent\":%.9f,\"reads\":[", i, s->due, s->sent);
        for (int j = 0; j < s->reads; j++) printf("%s[%.9f,%d]", j ? "," : "", s->at[j], s->bytes[j]);
        puts("]}");
    }
    for (int i = 0; i < count; i++) fwrite(streams[i].data, 1, streams[i].size, stdout);
    return 0;
}
