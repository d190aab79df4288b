// The next step where there is nothing to show yet.

import { h } from './dom.js';
import { split } from './format.js';

/** nextStep is how to make a flow: in a lab, a command that can be copied. */
export function nextStep(topology, services) {
  const usable = (services ?? []).filter((sv) => sv.protocol === 'TCP' && sv.endpoints.some((e) => !e.excluded && !e.removed));
  const service = usable.find((sv) => sv.port === 80) ?? usable[0]; // the most likely to speak HTTP
  const pod = topology?.pods?.[0];
  if (!topology?.lab || !service || !pod) return h('p', { class: 'hint' }, 'Connections to services appear here as they begin.');
  const at = service.family === 'IPv6' ? `[${service.clusterIP}]:${service.port}` : `${service.clusterIP}:${service.port}`;
  return h('p', { class: 'hint' }, 'Send a request from a pod: ', h('code', null, `nfqproxy lab exec --lab ${topology.lab} ${split(pod.name)[1]} -- curl -s ${at}/`));
}
