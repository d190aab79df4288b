// Labels and descriptions of the codes in records (see datapath/flow/SCHEMA.md). The server makes
// vocabulary.js of its own.

import { who } from './format.js';
import { events, verdicts } from './vocabulary.js';

export { branches, entries, exclusions, gaps, holds, masquerades, outcomes, reasons, verdicts } from './vocabulary.js';

export const missed = {
  'slow-reader': 'this page was too slow',
  sampled: 'rate limit of the API',
  lost: 'queue overflow on the node',
  unreachable: 'a node is unreachable',
  'not-written': 'they could not be written to the history',
};

/** meanings are the columns of flows. */
export const meanings = {
  time: 'When the node decided the first packet', state: 'Where the flow is in its life cycle', source: 'Who opened the connection', to: 'The address that the client used, and the service that has it',
  got: 'The pod that the flow was sent to, or why there is none', node: 'The node that decided: the source\'s or, from outside, the one that the packet reached. After the arrow: the endpoint\'s node, if it has reported the packet', bytes: 'Traffic in both directions, as connection tracking counts it', duration: 'From the creation of the connection entry to its end',
};

/** state is the flow's state; '' if it is not known, as for packets that pass in simulations. */
export const state = (r) => r.life?.state ?? verdicts[r.verdict]?.state ?? '';

/** label is the state or, without one, the verdict. */
export const label = (r) => state(r) || (verdicts[r.verdict]?.text ?? r.verdict);

/** about describes a state or another event. */
export const about = (event) => (event === 'held' ? 'held at the queue' : events[event]?.text ?? '');

/** tone is the severity, for colours: good, warn, bad, pass, or wait for a pending state. */
export const tone = (event) => (event ? events[event]?.tone ?? 'wait' : 'pass');

/** ended is true for a final state. */
export const ended = (event) => events[event]?.ended ?? false;

/** isError is true for a state that counts as an error. */
export const isError = (event) => events[event]?.tone === 'bad';

/** errors are the states that count as errors. */
export const errors = Object.keys(events).filter(isError);

/** subject is what a record is about: its source and its destination. */
export const subject = (r) => `${who(r)} → ${r.service || r.destination}`;

/** sentence summarizes a record in one sentence: as what happened, or as what would happen to a packet that is not there. */
export function sentence(r, happened = Boolean(r.id)) {
  if (r.verdict === 'dnat') return `${subject(r)}: ${happened ? 'sent' : 'would be sent'} to endpoint ${r.pod || r.endpoint}`;
  if (r.reason === 'translation-unknown') return `${subject(r)}: translation not known`;
  if (r.verdict === 'accept') return `${subject(r)}: ${happened ? 'passed' : 'would pass'} unchanged`;
  return `${subject(r)}: ${happened ? '' : 'would be '}${verdicts[r.verdict]?.text ?? r.verdict}`;
}

/** fit compares the distribution of a service's flows over its endpoints with random selection, if that selects them. */
export function fit(service) {
  if (service.balance) return { tone: 'pass', text: `selected by ${service.balance}` };
  const f = service.fit;
  if (!f) return { tone: 'pass', text: 'no random selections yet' };
  const used = service.endpoints.filter((e) => e.expected > 0);
  const least = Math.min(...used.map((e) => e.expected)) * f.draws;
  const p = f.pValue < 0.001 ? 'p < 0.001' : `p = ${f.pValue.toPrecision(2)}`;
  if (least < 5) return { tone: 'pass', text: `too few random selections for a test (${f.draws})` };
  if (f.pValue < 0.01) return { tone: 'warn', text: `less even than expected from random selection: ${p}` };
  return { tone: 'good', text: `as expected from random selection: ${p}` };
}
