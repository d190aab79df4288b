// What the words of records mean (see datapath/flow/SCHEMA.md), for people.

import { who } from './format.js';
import { events, verdicts } from './vocabulary.js';

export { branches, entries, exclusions, masquerades, reasons } from './vocabulary.js';

export const missed = {
  'slow-reader': 'this page read too slowly',
  sampled: 'there are more than the API gives out',
  lost: 'the node had no room for them',
  unreachable: 'a node cannot be asked',
};

/** state is where a record's flow is in its life; '' if that is not known, as of packets that pass in simulations. */
export const state = (r) => r.life?.state ?? verdicts[r.verdict]?.state ?? '';

/** label is the state, or else what the verdict does. */
export const label = (r) => state(r) || (verdicts[r.verdict]?.text ?? r.verdict);

/** about says what a state or another event means. */
export const about = (event) => (event === 'held' ? 'held at the queue' : events[event]?.text ?? '');

/** tone is the colour's meaning: good, warn, bad, pass, or wait for what is not known yet. */
export const tone = (event) => (event ? events[event]?.tone ?? 'wait' : 'pass');

/** ended says whether a flow in this state does not go on. */
export const ended = (event) => events[event]?.ended ?? false;

/** isError says whether a flow in this state counts as an error. */
export const isError = (event) => events[event]?.tone === 'bad';

/** errors are the states that count as errors. */
export const errors = Object.keys(events).filter(isError);

/** sentence tells a record in one. */
export function sentence(r) {
  const from = who(r);
  const asked = r.service || r.destination;
  if (r.verdict === 'dnat') return `${from} asked ${asked} and ${r.id ? 'was led' : 'would be led'} to ${r.pod || r.endpoint}`;
  if (r.verdict === 'accept') return `${from} asked ${asked}, and the packet ${r.id ? 'passed' : 'would pass'} untouched`;
  return `${from} asked ${asked} and ${r.id ? 'was' : 'would be'} ${verdicts[r.verdict]?.text ?? r.verdict}`;
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
