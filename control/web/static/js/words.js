// What the words of records mean (see datapath/flow/SCHEMA.md), for people.

import { who } from './format.js';

export const reasons = {
  'not-a-service': 'no service has this destination',
  balanced: 'drawn by lot',
  affinity: 'session affinity: the client was there before',
  'no-endpoints': 'no usable endpoint anywhere',
  'no-local-endpoints': 'policy Local, and no usable endpoint on this node',
  'source-not-allowed': 'source not within loadBalancerSourceRanges',
  'foreign-localnet': 'to a loopback address, but not from one',
  rules: 'the rules say so',
  'not-filtered': 'the refusing rule is not on its way',
};

export const exclusions = {
  'not-ready': 'not ready',
  'not-serving': 'terminating, and serves no more',
  terminating: 'terminating, while others are ready',
  'other-zone': 'hinted for another zone',
  'other-node': 'hinted for another node',
  'not-local': 'on another node, and the policy is Local',
  'other-family': 'of the other address family',
  unused: 'nothing is used under the policy',
  affinity: 'the client is bound to another',
};

export const masquerades = {
  'masquerade-all': 'all ClusterIP traffic is (--masquerade-all)',
  'source-outside-cluster': 'to a ClusterIP, and from no pod',
  external: 'it came from outside, so that the reply comes back here',
  'local-source': 'made on the node itself',
  hairpin: 'the endpoint reaches itself',
  'host-masquerade': "a rule of the host's own",
};

export const entries = {
  'cluster-ip': 'ClusterIP',
  'external-ip': 'external IP',
  'load-balancer-ip': 'load balancer IP',
  'node-port': 'node port',
};

export const branches = {
  'internal-policy': 'internal traffic policy',
  'external-policy': 'external traffic policy',
  'pod-short-circuit': 'a pod asks: the external policy does not bind it',
  'node-short-circuit': 'the node itself asks: the external policy does not bind it',
};

export const events = {
  decided: 'it got its verdict',
  answered: 'a packet came back',
  established: 'handshake done',
  closing: 'one side has no more to send',
  closed: 'both sides said so',
  reset: 'one side broke off',
  refused: 'the endpoint refused',
  unanswered: 'no answer for three seconds',
  expired: 'nothing came any more',
  removed: 'its entry was taken out',
  rejected: 'refused with an ICMP error',
  dropped: 'dropped',
  failed: 'no entry could be made',
  repeated: 'the first packet came again',
  gone: "the kernel's entry is gone",
  held: 'held at the queue',
};

export const missed = {
  'slow-reader': 'this page read too slowly',
  sampled: 'there are more than the API gives out',
  lost: 'the node had no room for them',
  unreachable: 'a node cannot be asked',
};

const verdicts = { accept: 'passed', reject: 'rejected', drop: 'dropped' };

/** state is where a record's flow is in its life, simulated ones included. */
export const state = (r) => (r.verdict === 'accept' ? 'passed' : r.life?.state ?? verdicts[r.verdict] ?? (r.verdict === 'dnat' ? 'decided' : r.verdict));

const tones = {
  answered: 'good', established: 'good', closing: 'good', closed: 'good', expired: 'good',
  unanswered: 'warn', removed: 'warn',
  reset: 'bad', refused: 'bad', rejected: 'bad', dropped: 'bad', failed: 'bad',
  passed: 'pass',
};

/** tone is the colour's meaning: good, warn, bad, pass, or wait for what is not known yet. */
export const tone = (name) => tones[name] ?? 'wait';

/** sentence tells a record in one. */
export function sentence(r) {
  const from = who(r);
  const asked = r.service || r.destination;
  if (r.verdict === 'dnat') return `${from} asked ${asked} and ${r.id ? 'was led' : 'would be led'} to ${r.pod || r.endpoint}`;
  if (r.verdict === 'accept') return `${from} asked ${asked}, and the packet ${r.id ? 'passed' : 'would pass'} untouched`;
  return `${from} asked ${asked} and ${r.id ? 'was' : 'would be'} ${r.verdict === 'reject' ? 'refused' : 'ignored'}`;
}

/** fit says in a sentence whether a service's flows spread as they should. */
export function fit(service) {
  const f = service.fit;
  if (!f) return { tone: 'pass', text: 'there are no draws to compare' };
  const used = service.endpoints.filter((e) => e.expected > 0);
  const least = Math.min(...used.map((e) => e.expected)) * f.draws;
  const p = f.pValue < 0.001 ? 'p < 0.001' : `p = ${f.pValue.toPrecision(2)}`;
  if (least < 5) return { tone: 'pass', text: `too few draws to tell (${f.draws})` };
  if (f.pValue < 0.01) return { tone: 'warn', text: `spread more unequally than chance would: ${p}` };
  return { tone: 'good', text: `spread as chance would: ${p}` };
}
