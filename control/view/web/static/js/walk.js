// What a flow's picture shows, before it is drawn: a record's steps as chains with their
// rules, and what the packet is before and after them.

import { host, port, who } from './format.js';
import { entries, exclusions, masquerades, reasons } from './words.js';

const RUN = 4; // so many rules in a row that did not match are told of together

/** hookOf is where in the kernel a step is; traces say it, else it follows from the chain. */
function hookOf(step, r) {
  if (step.hook) return step.hook;
  if (step.chain === 'KUBE-POSTROUTING') return 'POSTROUTING';
  if (r.local) return 'OUTPUT';
  if (step.table !== 'filter') return 'PREROUTING';
  return r.entry === 'node-port' || step.chain === 'KUBE-FIREWALL' ? 'INPUT' : 'FORWARD';
}

const draws = (step, r) => r.draw !== undefined && step.outcome === 'jump' && /-j KUBE-SEP-/.test(step.rule);

/** chains groups the steps: [{hook, table, chain, rules}]; a rule is {step, index, draws} or a
 * run {run: [rules]}. next, if given, is the index of the step that is about to happen: it
 * stays by itself. */
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

/** packet says who sends it, and to what. */
export function packet(r) {
  return {
    from: { name: who(r), kind: r.sourcePod ? 'pod' : r.local || r.sourceNode ? 'node' : r.sourceHost ? 'host' : 'address', address: r.source, node: r.sourcePod ? r.sourceNode : '' },
    to: { name: r.service || host(r.destination), kind: r.service ? 'service' : 'address', address: r.destination, by: r.entry ? entries[r.entry] ?? r.entry : 'no service has this address' },
  };
}

/** seenSource is what the endpoint sees it come from. */
export function seenSource(r) {
  if (r.life?.seenSource) return r.life.seenSource;
  if (!r.masquerade) return r.source;
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
    masquerade: r.masquerade ? `masqueraded: ${masquerades[r.masqueradeReason] ?? (r.masqueradeReason || 'an earlier packet was')}` : r.masqueradeReason ? 'marked for masquerading, but delivered on the node itself' : '',
  };
}

/** entry is the kernel's connection entry. */
export function entry(r) {
  if (r.verdict !== 'dnat') return null;
  const titles = {
    created: 'created before the packet went on', kept: 'kept: an earlier packet had decided',
    replaced: 'in the place of a finished connection', failed: 'could not be made',
  };
  return {
    title: titles[r.conntrack] ?? 'it would be created',
    original: `${r.source} → ${r.destination}`,
    reply: `${r.endpoint} → ${seenSource(r)}`,
    state: r.life?.kernelState ?? '',
    sent: r.life?.sent, received: r.life?.received,
    failed: r.conntrack === 'failed' ? r.error ?? 'failed' : '',
  };
}

/** end is where it comes to an end, if that is no endpoint. */
export function end(r) {
  if (r.verdict === 'dnat') return null;
  const ends = {
    accept: { tone: 'pass', title: 'It passes untouched', text: reasons[r.reason] ?? r.reason },
    reject: { tone: 'bad', title: 'Rejected: ICMP port unreachable', text: `${reasons[r.reason] ?? r.reason}; the client sees “connection refused” at once` },
    drop: { tone: 'bad', title: 'Dropped', text: `${reasons[r.reason] ?? r.reason}; the client waits until it gives up` },
  };
  return ends[r.verdict] ?? { tone: 'warn', title: 'It cannot be told', text: reasons[r.reason] ?? r.reason };
}

/** wayBack is the answer's: one sentence for each station, and bad or warn as tone if it does
 * not come, or says no. Without an endpoint there is none: the end tells what the client sees.
 * Of a flow that is held, it is the one that an answer would take. */
export function wayBack(r, held) {
  if (r.verdict !== 'dnat' || r.conntrack === 'failed') return { steps: [], tone: 'good' };
  if (r.reply) return { steps: r.reply.steps, tone: r.reply.source ? 'good' : 'bad' };
  if (!held && r.life && !r.life.answered && r.life.state !== 'refused') return { steps: [r.life.state === 'unanswered' || r.life.over ? 'no packet came back' : 'no packet came back yet'], tone: 'warn' };
  const refused = r.life?.state === 'refused';
  const back = [`the endpoint ${refused ? 'refuses, and says so to' : 'answers'} whom it saw: ${r.endpoint} → ${seenSource(r)}`, "connection tracking finds the flow's entry; no rule is looked at any more"];
  if (r.masquerade) back.push(`un-SNAT: the destination becomes ${r.source} again`);
  back.push(`un-DNAT: the source becomes ${r.destination} again`);
  return { steps: back, tone: refused ? 'bad' : 'good' };
}

/** endpoints are all of the service, with their chance or why they have none. */
export function endpoints(r) {
  return [
    ...r.candidates.map((c) => ({ endpoint: c.endpoint, chance: c.probability, taken: c.endpoint === r.endpoint })),
    ...r.excluded.map((x) => ({ endpoint: x.endpoint, why: exclusions[x.reason] ?? x.reason })),
  ];
}
