#include "floor.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <libnfnetlink/libnfnetlink.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>

_Noreturn void die(const char *what)
{
	perror(what);
	exit(1);
}

unsigned long number(const char *text, unsigned long max)
{
	char *end;
	errno = 0;
	unsigned long value = strtoul(text, &end, 10);
	if (errno || *text == '\0' || *end != '\0' || value > max) {
		fprintf(stderr, "%s: want a number of at most %lu\n", text, max);
		exit(2);
	}
	return value;
}

static void *loop(void *argument)
{
	struct queue *q = argument;
	char buffer[4096] __attribute__((aligned(8)));
	for (;;) {
		ssize_t n = recv(q->fd, buffer, sizeof buffer, 0);
		if (n < 0 && (errno == EINTR || errno == ENOBUFS))
			continue;
		if (n < 0)
			die("recv");
		nfq_handle_packet(q->handle, buffer, (int)n);
	}
}

static void bind_queue(struct queue *q, nfq_callback *callback)
{
	q->handle = nfq_open();
	if (!q->handle)
		die("nfq_open");
	q->binding = nfq_create_queue(q->handle, q->number, callback, q);
	if (!q->binding)
		die("nfq_create_queue");
	if (nfq_set_mode(q->binding, NFQNL_COPY_PACKET, COPY_RANGE) < 0)
		die("nfq_set_mode");
	// As the product does: packets are not segmented before they are queued.
	if (nfq_set_queue_flags(q->binding, NFQA_CFG_F_GSO | NFQA_CFG_F_FAIL_OPEN, NFQA_CFG_F_GSO | NFQA_CFG_F_FAIL_OPEN) < 0)
		die("nfq_set_queue_flags");
	if (nfq_set_queue_maxlen(q->binding, 1024) < 0)
		die("nfq_set_queue_maxlen");
	nfnl_rcvbufsiz(nfq_nfnlh(q->handle), 8 << 20);
	q->fd = nfq_fd(q->handle);
}

static int open_conntrack(void)
{
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);
	if (fd < 0)
		die("netlink socket");
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	if (connect(fd, (struct sockaddr *)&kernel, sizeof kernel) < 0)
		die("connect to the kernel");
	int one = 1;
	setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &one, sizeof one);
	return fd;
}

void serve(uint16_t first, int count, int with_conntrack, nfq_callback *callback)
{
	static struct queue queues[MAX_QUEUES];
	if (count < 1 || count > MAX_QUEUES) {
		fprintf(stderr, "want 1 to %d queues\n", MAX_QUEUES);
		exit(2);
	}
	for (int i = 0; i < count; i++) {
		queues[i] = (struct queue){.number = (uint16_t)(first + i), .conntrack_fd = -1, .random = 2463534242u + (uint32_t)i};
		bind_queue(&queues[i], callback);
		if (with_conntrack)
			queues[i].conntrack_fd = open_conntrack();
	}
	if (write(STDOUT_FILENO, "ready\n", 6) != 6)
		die("write");
	pthread_t thread;
	for (int i = 1; i < count; i++)
		if (pthread_create(&thread, NULL, loop, &queues[i]))
			die("pthread_create");
	loop(&queues[0]);
}
