// The way of a connection's first packet through the nodes that decided it.

import { between } from './format.js';

/** ends is true if the packet goes no further than the record's node. */
export const ends = (r) => !['accept', 'dnat'].includes(r.verdict) || r.conntrack === 'failed';

/** leaves is the packet as it leaves the record's node; known is false where the kernel has selected the source's port and has not reported it yet. */
export function leaves(r) {
  const destination = r.endpoint || r.destination;
  if (r.life?.seenSource) return { source: r.life.seenSource, destination, known: true };
  if (!r.masquerade) return { source: r.source, destination, known: true };
  const a = r.masqueradeAddress;
  return { source: a ? `${a.includes(':') ? `[${a}]` : a}:?` : `an address of ${r.node}`, destination, known: false };
}

/** decider is the record of the node that translates the packets, else of the one that rejects or drops the first one, else r. */
export function decider(r) {
  let best = r;
  for (const o of r.others ?? []) if (!best.endpoint && (o.endpoint || (ends(o) && !ends(best)))) best = o;
  return best;
}

/**
 * path is the nodes that the first packet passes, in the order of its addresses, as clocks of nodes differ: [{node, record}].
 * A node that the packet must pass, as the source or the endpoint is a pod there, has no record if none of it is known.
 */
export function path(r) {
  const middle = decider(r), isEarlier = (o, than) => between(than.time, o.time) < 0;
  const isBefore = (o) => {
    const { source, destination, known } = leaves(o);
    return known && !ends(o) && source === middle.source && destination === middle.destination && (middle.endpoint || ends(middle) || isEarlier(o, middle));
  };
  const rank = (o) => (o === middle ? 1 : isBefore(o) ? 0 : 2);
  const all = [r, ...(r.others ?? [])].sort((a, b) => rank(a) - rank(b) || between(b.time, a.time) || 0);
  const hops = all.map((record) => ({ node: record.node, record }));
  const [first] = all, last = all.at(-1);
  if (first.sourcePod && first.sourceNode && first.sourceNode !== first.node && !first.local) hops.unshift({ node: first.sourceNode });
  if (middle.endpointNode && middle.endpointNode !== last.node && !ends(last)) hops.push({ node: middle.endpointNode });
  return hops;
}

/** decided is the path without the nodes that have no record. */
export const decided = (r) => path(r).filter((hop) => hop.record).map((hop) => hop.record);
