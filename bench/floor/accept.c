// accept accepts every packet of its queues: the minimum cost of a netfilter queue.
//
//	accept FIRST-QUEUE QUEUES
#include <arpa/inet.h>
#include <stdio.h>

#include <linux/netfilter.h>

#include "floor.h"

static int callback(struct nfq_q_handle *binding, struct nfgenmsg *message, struct nfq_data *data, void *argument)
{
	(void)message, (void)argument;
	struct nfqnl_msg_packet_hdr *header = nfq_get_msg_packet_hdr(data);
	return nfq_set_verdict(binding, ntohl(header->packet_id), NF_ACCEPT, 0, NULL);
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: accept FIRST-QUEUE QUEUES\n");
		return 2;
	}
	serve((uint16_t)number(argv[1], 65535), (int)number(argv[2], MAX_QUEUES), 0, callback);
}
