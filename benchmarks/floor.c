/* The least that a client over sockets can do for a token: epoll, recvmsg with the kernel's stamp, a scan of the bytes.
 *
 * A closed loop of completions, without HTTP or JSON: what no client can undercut that uses neither io_uring nor a
 * bypass of the kernel. `floor.py` builds and runs it. Usage: floor PORT STREAMS REQUESTS OUTPUT_TOKENS < request
 * The request comes on stdin, byte for byte. Prints: tokens, CPU seconds, wall seconds, mean TTFT in ms.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 1024

struct stream {
    int fd;
    int tokens;
    long long sent_ns, first_ns;
};

static char request[65536], buffer[262144];
static size_t request_size;
static long started, completed, wanted, tokens_wanted, tokens;
static double ttft_ms;

static void give_up(const char *what)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static double cpu_s(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void open_stream(struct stream *stream, int port, int poll)
{
    int on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
    stream->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (stream->fd < 0 || connect(stream->fd, (struct sockaddr *)&address, sizeof address))
        give_up("connect");
    setsockopt(stream->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(stream->fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    if (epoll_ctl(poll, EPOLL_CTL_ADD, stream->fd, &event))
        give_up("epoll_ctl");
}

static void begin(struct stream *stream)
{
    if (started == wanted)
        return;
    started++;
    stream->first_ns = stream->tokens = 0;
    stream->sent_ns = now_ns();
    if (send(stream->fd, request, request_size, MSG_NOSIGNAL) != (ssize_t)request_size)
        give_up("send");
}

static ssize_t receive(struct stream *stream, long long *stamp_ns)
{
    char control[64];
    struct iovec into = {buffer, sizeof buffer};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(stream->fd, &message, MSG_DONTWAIT);
    if (size <= 0)
        return size;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head) {
        struct timespec *stamp = (struct timespec *)CMSG_DATA(head);
        *stamp_ns = stamp->tv_sec * 1000000000LL + stamp->tv_nsec;
    } else {
        *stamp_ns = now_ns();
    }
    return size;
}

/* The simulator writes whole events, and the last one together with the end of the response. */
static void take(struct stream *stream)
{
    long long stamp_ns;
    ssize_t size = receive(stream, &stamp_ns);
    if (size < 0 && errno == EAGAIN)
        return;
    if (size <= 0)
        give_up("the server closed a connection");
    const char *at = buffer, *end = buffer + size;
    while ((at = memmem(at, end - at, "\"text\":", 7))) {
        at += 7;
        stream->tokens++;
        if (!stream->first_ns)
            stream->first_ns = stamp_ns;
    }
    if (size >= 5 && !memcmp(end - 5, "0\r\n\r\n", 5)) {
        if (stream->tokens != tokens_wanted)
            fprintf(stderr, "floor: %d tokens instead of %ld\n", stream->tokens, tokens_wanted);
        completed++;
        tokens += stream->tokens;
        ttft_ms += (stream->first_ns - stream->sent_ns) / 1e6;
        begin(stream);
    }
}

int main(int count, char **words)
{
    if (count != 5)
        return 2;
    int port = atoi(words[1]), streams = atoi(words[2]), poll = epoll_create1(0);
    struct stream *all = calloc(streams, sizeof *all);
    struct epoll_event ready[EVENTS];
    wanted = atol(words[3]);
    tokens_wanted = atol(words[4]);
    request_size = fread(request, 1, sizeof request, stdin);
    for (int index = 0; index < streams; index++)
        open_stream(all + index, port, poll);
    double began_cpu_s = cpu_s();
    long long began_ns = now_ns();
    for (int index = 0; index < streams; index++)
        begin(all + index);
    while (completed < wanted) {
        int found = epoll_wait(poll, ready, EVENTS, -1);
        for (int index = 0; index < found; index++)
            take(ready[index].data.ptr);
    }
    printf("%ld %.6f %.6f %.6f\n", tokens, cpu_s() - began_cpu_s, (now_ns() - began_ns) / 1e9, ttft_ms / completed);
    return 0;
}
