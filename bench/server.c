// A chat-completions server that answers every request on one exact schedule and says when it really sent.
//
//   server FIRST_US INTERVAL_US CHUNKS TOKENS [CPU]
//
// One process, one thread, epoll. A request is answered with its response head at once; FIRST_US after its last byte was
// read come the role chunk and the first text chunk, then a text chunk every INTERVAL_US, CHUNKS in all; the last carries
// the finish reason and is followed by the usage-only chunk, [DONE] and the end. TOKENS is a comma-separated cycle: the
// tokens of each chunk. Chunks look like vLLM's, with usage in each. Every stream gets the same bytes.
//
// Sleeping is left 60 us before something is due and the rest is spun, so that the schedule does not wait for a wake-up.
// GET /log: a JSON array of the streams, {"stream", "received", "sends"} in seconds of CLOCK_MONOTONIC, and how often a
// socket was full; the stream's number is what follows "stream-" in the request's body. GET /forget empties it.
// Started as a program it prints its port and ends when its standard input closes.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 60000, REQUEST = 1 << 20, EVENTS = 512 };

typedef struct {
    int number;
    int64_t received;
    int64_t *sends;
    int sent;
} Stream;

typedef struct {
    int fd;
    int got;
    int closing; // the client asked for Connection: close
    char *request;
    Stream *stream; // being answered
} Connection;

typedef struct {
    int64_t due;
    Connection *connection;
} Due;

static int64_t first_ns, interval_ns;
static int chunks;
static char **texts, *head_keep, *head_close, *role, *tail;
static int *text_sizes, head_keep_size, head_close_size, role_size, tail_size;
static Stream **streams;
static int stream_count, stream_room;
static Due *heap;
static int heap_count, heap_room;
static long stalls;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void *claim(void *old, size_t size) {
    void *found = realloc(old, size);
    if (!found) die("realloc");
    return found;
}

// what a request is answered with

static char *format(int *size, const char *pattern, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, pattern);
    *size = vasprintf(&text, pattern, arguments);
    va_end(arguments);
    if (*size < 0) die("vasprintf");
    return text;
}

#define FACE "{\"id\":\"chatcmpl-9f0e8c1d2b3a4f5e6d7c8b9a0f1e2d3c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\","
#define USAGE "\"usage\":{\"prompt_tokens\":3,\"total_tokens\":%d,\"completion_tokens\":%d}}"

static char *framed(int *size, char *event) {
    int length = (int)strlen(event) + 8; // "data: " and the blank line
    char *text = format(size, "%x\r\ndata: %s\n\n\r\n", length, event);
    free(event);
    return text;
}

static void render(const char *cycle) {
    int tokens[64], count = 0, sum = 0, unused;
    for (const char *at = cycle; *at && count < 64;) {
        tokens[count++] = atoi(at);
        at += strcspn(at, ",");
        at += *at == ',';
    }
    if (!count) exit(2);
    const char *head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n%stransfer-encoding: chunked\r\n\r\n";
    head_keep = format(&head_keep_size, head, "");
    head_close = format(&head_close_size, head, "connection: close\r\n");
    role = framed(&role_size, format(&unused, FACE "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                                                   "\"logprobs\":null,\"finish_reason\":null}]," USAGE, 3, 0));
    texts = claim(NULL, chunks * sizeof *texts);
    text_sizes = claim(NULL, chunks * sizeof *text_sizes);
    for (int i = 0; i < chunks; i++) {
        char words[64] = "";
        for (int j = 0; j < tokens[i % count]; j++) strcat(words, "the ");
        sum += tokens[i % count];
        texts[i] = framed(&text_sizes[i],
                          format(&unused, FACE "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"},\"logprobs\":null,"
                                               "\"finish_reason\":%s,\"token_ids\":null}]," USAGE,
                                 words, i == chunks - 1 ? "\"stop\"" : "null", 3 + sum, sum));
    }
    int size;
    char *usage = framed(&size, format(&unused, FACE "\"choices\":[]," USAGE, 3 + sum, sum));
    tail = format(&tail_size, "%se\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", usage);
    free(usage);
}

// what is due

static void push(int64_t due, Connection *connection) {
    if (heap_count == heap_room) heap = claim(heap, (heap_room = heap_room ? 2 * heap_room : 1024) * sizeof *heap);
    int i = heap_count++;
    for (; i && heap[(i - 1) / 2].due > due; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = (Due){due, connection};
}

static Connection *pop(void) {
    Connection *connection = heap[0].connection;
    Due last = heap[--heap_count];
    int i = 0;
    for (int child; (child = 2 * i + 1) < heap_count; i = child) {
        if (child + 1 < heap_count && heap[child + 1].due < heap[child].due) child++;
        if (heap[child].due >= last.due) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return connection;
}

static void hang_up(Connection *connection) {
    if (connection->fd >= 0) close(connection->fd);
    connection->fd = -1;
    if (connection->stream) return; // still on the heap: freed there
    free(connection->request);
    free(connection);
}

static int put(Connection *connection, const char *data, int size) {
    while (size) {
        ssize_t done = send(connection->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done < 0 && errno == EAGAIN) {
            stalls++; // a client that does not read: waited for, and told
            done = send(connection->fd, data, size, MSG_NOSIGNAL);
        }
        if (done < 0) return -1;
        data += done;
        size -= (int)done;
    }
    return 0;
}

static void emit(Connection *connection) {
    Stream *stream = connection->stream;
    int gone = connection->fd < 0;
    int i = stream->sent;
    if (!gone && i == 0) gone = put(connection, role, role_size);
    if (!gone) {
        stream->sends[stream->sent++] = now_ns();
        gone = put(connection, texts[i], text_sizes[i]);
    }
    if (!gone && stream->sent < chunks) {
        push(stream->received + first_ns + stream->sent * interval_ns, connection);
        return;
    }
    if (!gone) gone = put(connection, tail, tail_size);
    connection->stream = NULL;
    if (gone || connection->closing) hang_up(connection);
}

// requests

static void answer_log(Connection *connection, int forget) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    fprintf(out, "{\"stalls\":%ld,\"streams\":[", stalls);
    for (int i = 0; i < stream_count; i++) {
        fprintf(out, "%s{\"stream\":%d,\"received\":%.9f,\"sends\":[", i ? "," : "", streams[i]->number, streams[i]->received / 1e9);
        for (int j = 0; j < streams[i]->sent; j++) fprintf(out, "%s%.9f", j ? "," : "", streams[i]->sends[j] / 1e9);
        fputs("]}", out);
    }
    fputs("]}", out);
    fclose(out);
    if (forget) stream_count = 0, stalls = 0; // the streams themselves are left: one may still be running
    int head_size;
    char *head = format(&head_size, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", size);
    if (!put(connection, head, head_size)) put(connection, text, (int)size);
    free(head);
    free(text);
}

static void answer(Connection *connection, int64_t received) {
    char *body = strstr(connection->request, "\r\n\r\n") + 4;
    connection->closing = strcasestr(connection->request, "\r\nconnection: close") != NULL;
    if (!strncmp(connection->request, "GET /log ", 9) || !strncmp(connection->request, "GET /forget ", 12)) {
        answer_log(connection, connection->request[5] == 'f');
    } else if (!strncmp(connection->request, "GET ", 4)) { // /v1/models, /health
        const char *models = "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\",\"root\":\"m\"}]}";
        int size;
        char *text = format(&size, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", strlen(models), models);
        put(connection, text, size);
        free(text);
    } else {
        const char *name = strstr(body, "stream-");
        Stream *stream = claim(NULL, sizeof *stream);
        *stream = (Stream){name ? atoi(name + 7) : -1, received, claim(NULL, chunks * sizeof(int64_t)), 0};
        if (stream_count == stream_room) streams = claim(streams, (stream_room = stream_room ? 2 * stream_room : 1024) * sizeof *streams);
        streams[stream_count++] = stream;
        connection->stream = stream;
        push(received + first_ns, connection);
        if (connection->closing) put(connection, head_close, head_close_size);
        else put(connection, head_keep, head_keep_size);
        return;
    }
    if (connection->closing) shutdown(connection->fd, SHUT_WR);
}

static void receive(Connection *connection) {
    ssize_t got = recv(connection->fd, connection->request + connection->got, REQUEST - 1 - connection->got, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
        hang_up(connection);
        return;
    }
    int64_t received = now_ns();
    connection->got += (int)got;
    connection->request[connection->got] = 0;
    char *end = strstr(connection->request, "\r\n\r\n");
    if (!end) return;
    char *length = strcasestr(connection->request, "\r\ncontent-length:");
    if (length && length < end && connection->got < end + 4 - connection->request + atoi(length + 17)) return;
    connection->got = 0;
    answer(connection, received);
}

static void accept_all(int listener, int poll) {
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        int on = 1, size = 1 << 20;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        Connection *connection = claim(NULL, sizeof *connection);
        *connection = (Connection){.fd = fd, .request = claim(NULL, REQUEST)};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl");
    }
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "server FIRST_US INTERVAL_US CHUNKS TOKENS [CPU]\n");
        return 2;
    }
    first_ns = atol(argv[1]) * 1000;
    interval_ns = atol(argv[2]) * 1000;
    chunks = atoi(argv[3]);
    render(argv[4]);
    if (argc > 5) {
        cpu_set_t cpus;
        CPU_ZERO(&cpus);
        CPU_SET(atoi(argv[5]), &cpus);
        if (sched_setaffinity(0, sizeof cpus, &cpus)) die("sched_setaffinity");
    }
    prctl(PR_SET_TIMERSLACK, 1);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), poll = epoll_create1(EPOLL_CLOEXEC);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1024)) die("listen");
    getsockname(listener, (struct sockaddr *)&address, &size);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listener};
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    event.data.ptr = NULL;
    if (epoll_ctl(poll, EPOLL_CTL_ADD, STDIN_FILENO, &event)) die("standard input must be a pipe");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    struct epoll_event events[EVENTS];
    for (;;) {
        int64_t left = heap_count ? heap[0].due - now_ns() : 1000000000;
        int64_t sleep = left > SPIN_NS ? left - SPIN_NS : 0;
        struct timespec wait = {sleep / 1000000000, sleep % 1000000000};
        int found = epoll_pwait2(poll, events, EVENTS, &wait, NULL);
        for (int i = 0; i < found; i++) {
            if (!events[i].data.ptr) return 0;
            if (events[i].data.ptr == &listener) accept_all(listener, poll);
            else receive(events[i].data.ptr);
        }
        for (int64_t now = now_ns(); heap_count && heap[0].due <= now;) emit(pop());
    }
}
