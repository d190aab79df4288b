// The model of a flow's picture: a record's steps as chains with their rules, and the packet
// before and after them.

import { host, port, who } from './format.js';
import { leaves } from './way.js';
import { entries, exclusions, masquerades, outcomes, reasons } from './words.js';

const RUN = 4; // this many consecutive rules without a match are one row

/** hookOf is the netfilter hook of a step: a field in traces, else derived from the chain. */
function hookOf(step, r) {
  if (step.hook) return step.hook;
  if (step.chain === 'KUBE-POSTROUTING') return 'POSTROUTING';
  if (r.local) return 'OUTPUT';
  if (step.table !== 'filter') return 'PREROUTING';
  return r.entry === 'node-port' || step.chain === 'KUBE-FIREWALL' ? 'INPUT' : 'FORWARD';
}

/** draws reports whether a rule draws the endpoint: one of kube-proxy's chains, or one of nftables with a random number. */
const draws = (step, r) => r.candidates?.length > 0 && r.candidates.every((c) => c.probability !== undefined)
  && (r.draw !== undefined ? step.outcome === 'jump' && /-j KUBE-SEP-/.test(step.rule) : step.outcome === 'match' && /\bnumgen random\b/.test(step.rule));

/** chains groups the steps: [{hook, table, chain, rules}]; a rule is {step, index, draws} or a
 * run {run: [rules]}. next, if given, is the index of the next step of a held flow: it is never
 * part of a run. */
export function chains(r, next) {
  const groups = [];
  (r.steps ?? []).forEach((step, index) => {
    const hook = hookOf(step, r);
    let group = groups.at(-1);
    if (!group || group.hook !== hook || group.table !== step.table || group.chain !== step.chain) {
      group = { hook, table: step.table, chain: step.chain, rules: [] };
      groups.push(group);
    }
    group.rules.push({ step, index, draws: draws(step, r) });
  });
  for (const group of groups) group.rules = runs(group.rules, next);
  return groups;
}

function runs(rules, next) {
  const out = [];
  let run = [];
  const flush = () => {
    if (run.length >= RUN) out.push({ run });
    else out.push(...run);
    run = [];
  };
  for (const rule of rules) {
    if (rule.step.outcome === 'no-match' && rule.index !== next) { run.push(rule); continue; }
    flush();
    out.push(rule);
  }
  flush();
  return out;
}

/** shares are the candidates along the draw, from 0 to 1. */
export function shares(r) {
  let from = 0;
  return r.candidates.map((c) => {
    const share = { endpoint: c.endpoint, from, to: from + c.probability, taken: c.endpoint === r.endpoint };
    from = share.to;
    return share;
  });
}

/** packet is the packet's source and destination. */
export function packet(r) {
  return {
    from: { name: who(r), kind: r.sourcePod ? 'pod' : r.local || r.sourceNode ? 'node' : r.sourceHost ? 'host' : 'address', address: r.source, node: r.sourcePod ? r.sourceNode : '' },
    to: { name: r.service || host(r.destination), kind: r.service ? 'service' : 'address', address: r.destination, by: r.entry ? entries[r.entry] ?? r.entry : 'no service with this address' },
  };
}

/** seenSource is the source address and port as seen by the endpoint; of a simulated packet, the usual one. */
export function seenSource(r) {
  if (r.life || !r.masquerade) return leaves(r).source;
  if (r.reply?.destination) return r.reply.destination;
  const a = r.masqueradeAddress;
  return a ? `${a.includes(':') ? `[${a}]` : a}:${port(r.source)}` : 'an address of the node';
}

/** translation is the tuple before and after; null where nothing is translated. */
export function translation(r) {
  if (r.verdict !== 'dnat') return null;
  return {
    before: { source: r.source, destination: r.destination },
    after: { source: seenSource(r), destination: r.endpoint },
    masquerade: r.masquerade ? `masqueraded: ${masquerades[r.masqueradeReason] ?? (r.masqueradeReason || 'by an earlier packet')}` : r.masqueradeReason ? 'marked for masquerade, but delivered on the node itself: source unchanged' : '',
  };
}

/** entry is the conntrack entry. */
export function entry(r) {
  if (r.verdict !== 'dnat') return null;
  return {
    title: r.conntrack ? outcomes[r.conntrack] ?? r.conntrack : r.life ? '' : 'would be created', // observed and recorded flows have no outcome
    original: `${r.source} → ${r.destination}`,
    reply: `${r.endpoint} → ${seenSource(r)}`,
    state: r.life?.kernelState ?? '',
    sent: r.life?.sent, received: r.life?.received,
    failed: r.conntrack === 'failed' ? r.error ?? 'failed' : '',
  };
}

/** end is the outcome for a flow without an endpoint. */
export function end(r) {
  if (r.verdict === 'dnat') return null;
  const ends = {
    accept: { tone: 'pass', title: r.reason === 'translation-unknown' ? 'Translation not known' : 'Passes unchanged', text: reasons[r.reason] ?? r.reason },
    reject: { tone: 'bad', title: 'Rejected: ICMP port unreachable', text: `${reasons[r.reason] ?? r.reason}; the client gets “connection refused” immediately` },
    drop: { tone: 'bad', title: 'Dropped', text: `${reasons[r.reason] ?? r.reason}; the client's connection attempt times out` },
  };
  return ends[r.verdict] ?? { tone: 'warn', title: 'Verdict unknown', text: reasons[r.reason] ?? r.reason };
}

/** replyPath is the path of the reply, in the words of control/explain: one sentence for each
 * stage, and bad or warn as tone if there is no reply or it is a refusal. It is empty without an
 * endpoint: the end describes what the client sees. For a held flow it is the path that a reply
 * would take. named: there are several nodes, so it names the one that translates the reply back. */
export function replyPath(r, held, named) {
  if (r.verdict !== 'dnat' || r.conntrack === 'failed') return { steps: [], tone: 'good' };
  if (r.reply) return { steps: r.reply.steps, tone: r.reply.source ? 'good' : 'bad' };
  if (!held && r.life && !r.life.answered && r.life.state !== 'refused') return { steps: [r.life.state === 'unanswered' || r.life.over ? 'no reply' : 'no reply yet'], tone: 'warn' };
  const refused = r.life?.state === 'refused';
  const steps = [`the endpoint ${refused ? 'refuses the connection of' : 'replies to'} the source that it saw: ${r.endpoint} -> ${seenSource(r)}`, `${named ? `${r.node}: ` : ''}connection tracking finds the flow's entry; no nat rule is evaluated`];
  if (r.masquerade) steps.push(`un-SNAT: the destination becomes ${r.source} again`);
  steps.push(`un-DNAT: the source becomes ${r.destination} again`);
  return { steps, tone: refused ? 'bad' : 'good' };
}

/** endpoints lists all endpoints of the service, with their probability, where it is known, or the reason of their exclusion. */
export function endpoints(r) {
  return [
    ...r.candidates.map((c) => ({ endpoint: c.endpoint, chance: c.probability, taken: c.endpoint === r.endpoint })),
    ...r.excluded.map((x) => ({ endpoint: x.endpoint, why: exclusions[x.reason] ?? x.reason })),
  ];
}
