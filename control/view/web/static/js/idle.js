// The next step where there is nothing to show yet.

import { get, topology } from './api.js';
import { h } from './dom.js';
import { split } from './format.js';

/** nextStep is a place for the hint how to make a flow, which needs names of the cluster. */
export function nextStep() {
  const place = h('div');
  Promise.all([topology(), get('/v1/services?limit=50')]).then(([t, { services }]) => place.append(hint(t, services))).catch(() => { /* without a hint, then */ });
  return place;
}

/** hint is, in a lab, a command that can be copied. */
function hint(t, services) {
  const usable = services.filter((sv) => sv.protocol === 'TCP' && sv.endpoints.some((e) => !e.excluded && !e.removed));
  const service = usable.find((sv) => sv.port === 80) ?? usable[0]; // the most likely to speak HTTP
  const recorded = t.nodes.filter((n) => n.observed).map((n) => n.name), pod = t.pods.find((p) => recorded.includes(p.node)) ?? t.pods[0];
  if (!t.lab || !service || !pod) return h('p', { class: 'hint' }, 'Connections to services appear here as they begin.');
  const at = service.family === 'IPv6' ? `[${service.clusterIP}]:${service.port}` : `${service.clusterIP}:${service.port}`;
  return h('p', { class: 'hint' }, 'Send a request from a pod: ', h('code', null, `nfqproxy lab exec --lab ${t.lab} ${split(pod.name)[1]} -- curl -s ${at}/`));
}
