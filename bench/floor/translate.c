// translate is the plain, unbatched loop that also writes the connection entry with
// the translation: the minimum cost of a service proxy in user space, if it takes
// one packet at a time and has nothing to look up.
//
//	translate FIRST-QUEUE QUEUES checked|once SERVICES ENDPOINTS COUNT PORT
//
// The service at address SERVICES+i has COUNT endpoints from ENDPOINTS+i*COUNT on, at
// PORT. With "checked" the entry is written, the kernel's response read, an old entry
// replaced, and then the verdict sent; with "once" entry and verdict are sent in one
// datagram, and the result of the write is not checked.
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>

#include "floor.h"

static int once;
static uint32_t services, endpoints, endpoint_count;
static uint16_t endpoint_port;

enum { TIMEOUT = 30, MARK = 0x2000 }; // as package conntrack writes them
enum { MAX_SERVICES = 50000 };         // as bench/compare makes at most

// A message under construction.
struct message {
	char bytes[512] __attribute__((aligned(4)));
	uint32_t length;
};

static struct nlmsghdr *begin(struct message *m, uint16_t type, uint16_t flags, uint32_t sequence, uint8_t family, uint16_t resource)
{
	struct nlmsghdr *h = (struct nlmsghdr *)(m->bytes + m->length);
	*h = (struct nlmsghdr){.nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | flags, .nlmsg_seq = sequence};
	struct nfgenmsg *g = (struct nfgenmsg *)(h + 1);
	*g = (struct nfgenmsg){.nfgen_family = family, .version = NFNETLINK_V0, .res_id = htons(resource)};
	m->length += sizeof *h + sizeof *g;
	return h;
}

static void end(struct message *m, struct nlmsghdr *h)
{
	h->nlmsg_len = (uint32_t)(m->bytes + m->length - (char *)h);
}

static void put(struct message *m, uint16_t type, const void *value, uint16_t size)
{
	struct nlattr *a = (struct nlattr *)(m->bytes + m->length);
	*a = (struct nlattr){.nla_len = (uint16_t)(NLA_HDRLEN + size), .nla_type = type};
	memset((char *)(a + 1) + size, 0, NLA_ALIGN(size) - size);
	memcpy(a + 1, value, size);
	m->length += NLA_HDRLEN + NLA_ALIGN(size);
}

static void put32(struct message *m, uint16_t type, uint32_t value)
{
	value = htonl(value);
	put(m, type, &value, sizeof value);
}

static struct nlattr *nest(struct message *m, uint16_t type)
{
	struct nlattr *a = (struct nlattr *)(m->bytes + m->length);
	a->nla_type = type | NLA_F_NESTED;
	m->length += NLA_HDRLEN;
	return a;
}

static void close_nest(struct message *m, struct nlattr *a)
{
	a->nla_len = (uint16_t)(m->bytes + m->length - (char *)a);
}

// Addresses and ports are in network order.
struct flow {
	uint32_t source, destination;
	uint16_t source_port, destination_port;
	uint8_t protocol;
};

static void put_tuple(struct message *m, uint16_t type, uint32_t from, uint32_t to, uint16_t from_port, uint16_t to_port, uint8_t protocol)
{
	struct nlattr *tuple = nest(m, type);
	struct nlattr *ip = nest(m, CTA_TUPLE_IP);
	put(m, CTA_IP_V4_SRC, &from, 4);
	put(m, CTA_IP_V4_DST, &to, 4);
	close_nest(m, ip);
	struct nlattr *proto = nest(m, CTA_TUPLE_PROTO);
	put(m, CTA_PROTO_NUM, &protocol, 1);
	put(m, CTA_PROTO_SRC_PORT, &from_port, 2);
	put(m, CTA_PROTO_DST_PORT, &to_port, 2);
	close_nest(m, proto);
	close_nest(m, tuple);
}

static void put_create(struct message *m, uint32_t sequence, const struct flow *f, uint32_t endpoint)
{
	struct nlmsghdr *h = begin(m, NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW, NLM_F_CREATE | NLM_F_EXCL, sequence, AF_INET, 0);
	put_tuple(m, CTA_TUPLE_ORIG, f->source, f->destination, f->source_port, f->destination_port, f->protocol);
	put_tuple(m, CTA_TUPLE_REPLY, f->destination, f->source, f->destination_port, f->source_port, f->protocol);
	put32(m, CTA_TIMEOUT, TIMEOUT);
	put32(m, CTA_MARK, MARK);
	struct nlattr *nat = nest(m, CTA_NAT_DST);
	put32(m, CTA_NAT_V4_MINIP, endpoint);
	put32(m, CTA_NAT_V4_MAXIP, endpoint);
	struct nlattr *proto = nest(m, CTA_NAT_PROTO);
	uint16_t port = htons(endpoint_port);
	put(m, CTA_PROTONAT_PORT_MIN, &port, 2);
	put(m, CTA_PROTONAT_PORT_MAX, &port, 2);
	close_nest(m, proto);
	close_nest(m, nat);
	end(m, h);
}

static void put_delete(struct message *m, uint32_t sequence, const struct flow *f)
{
	struct nlmsghdr *h = begin(m, NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE, 0, sequence, AF_INET, 0);
	put_tuple(m, CTA_TUPLE_ORIG, f->source, f->destination, f->source_port, f->destination_port, f->protocol);
	end(m, h);
}

static void put_verdict(struct message *m, uint32_t sequence, uint16_t queue, uint32_t packet)
{
	struct nlmsghdr *h = begin(m, NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_VERDICT, 0, sequence, AF_UNSPEC, queue);
	struct nfqnl_msg_verdict_hdr v = {.verdict = htonl(NF_ACCEPT), .id = htonl(packet)};
	put(m, NFQA_VERDICT_HDR, &v, sizeof v);
	end(m, h);
}

// send_errno sends and gives the errno of the last request that was refused, or 0.
// Netlink is synchronous: refusals are there when send returns.
static int send_errno(int fd, const struct message *m)
{
	if (send(fd, m->bytes, m->length, 0) < 0)
		die("send");
	char answer[1024] __attribute__((aligned(4)));
	int refused = 0;
	while (recv(fd, answer, sizeof answer, MSG_DONTWAIT) > 0) {
		struct nlmsghdr *h = (struct nlmsghdr *)answer;
		if (h->nlmsg_type == NLMSG_ERROR)
			refused = -((struct nlmsgerr *)(h + 1))->error;
	}
	return refused;
}

static int parse(struct nfq_data *data, struct flow *f)
{
	unsigned char *p;
	int n = nfq_get_payload(data, &p);
	if (n < 20 || p[0] >> 4 != 4)
		return 0;
	int header = (p[0] & 15) * 4;
	if (n < header + 4)
		return 0;
	f->protocol = p[9];
	memcpy(&f->source, p + 12, 4);
	memcpy(&f->destination, p + 16, 4);
	memcpy(&f->source_port, p + header, 2);
	memcpy(&f->destination_port, p + header + 2, 2);
	return 1;
}

static uint32_t draw(struct queue *q) // xorshift32
{
	q->random ^= q->random << 13;
	q->random ^= q->random >> 17;
	q->random ^= q->random << 5;
	return q->random;
}

static int callback(struct nfq_q_handle *binding, struct nfgenmsg *message, struct nfq_data *data, void *argument)
{
	(void)message;
	struct queue *q = argument;
	uint32_t packet = ntohl(nfq_get_msg_packet_hdr(data)->packet_id);
	struct flow f;
	// Replies come here, too, when the set of decided UDP flows is full.
	if (!parse(data, &f) || ntohl(f.destination) - services >= MAX_SERVICES)
		return nfq_set_verdict(binding, packet, NF_ACCEPT, 0, NULL);
	uint32_t endpoint = endpoints + (ntohl(f.destination) - services) * endpoint_count + draw(q) % endpoint_count;

	struct message m;
	m.length = 0;
	put_create(&m, ++q->sequence, &f, endpoint);
	if (once) {
		put_verdict(&m, ++q->sequence, q->number, packet);
		// The queue's socket is not connected; its peer is the kernel.
		struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
		if (sendto(q->fd, m.bytes, m.length, 0, (struct sockaddr *)&kernel, sizeof kernel) < 0)
			die("sendto");
		return 0;
	}
	if (send_errno(q->conntrack_fd, &m) == EEXIST) {
		m.length = 0;
		put_delete(&m, ++q->sequence, &f);
		put_create(&m, ++q->sequence, &f, endpoint);
		send_errno(q->conntrack_fd, &m);
	}
	return nfq_set_verdict(binding, packet, NF_ACCEPT, 0, NULL);
}

static uint32_t address(const char *text)
{
	struct in_addr a;
	if (inet_pton(AF_INET, text, &a) != 1) {
		fprintf(stderr, "%s: want an IPv4 address\n", text);
		exit(2);
	}
	return ntohl(a.s_addr);
}

int main(int argc, char **argv)
{
	if (argc != 8 || (strcmp(argv[3], "checked") && strcmp(argv[3], "once")) || number(argv[6], 1 << 20) == 0) {
		fprintf(stderr, "usage: translate FIRST-QUEUE QUEUES checked|once SERVICES ENDPOINTS COUNT PORT\n");
		return 2;
	}
	once = !strcmp(argv[3], "once");
	services = address(argv[4]);
	endpoints = address(argv[5]);
	endpoint_count = (uint32_t)number(argv[6], 1 << 20);
	endpoint_port = (uint16_t)number(argv[7], 65535);
	serve((uint16_t)number(argv[1], 65535), (int)number(argv[2], MAX_QUEUES), !once, callback);
}
