// Suggestions for address fields: pods, machines and services by their names, as the API
// accepts them.

import { get, topology } from './api.js';
import { h, replace } from './dom.js';

const OFFERED = 500; // suggestions in a list, at most: browsers slow down with more

/** places fills two lists of suggestions and a list of nodes, when they are loaded. */
export async function places({ sources, destinations, nodes }) {
  const [t, services] = await Promise.all([topology(), get('/v1/services')]);
  if (sources) replace(sources, [...t.pods.slice(0, OFFERED).map((p) => h('option', { value: `pod/${p.name}` }, [p.addresses[0], p.node].filter(Boolean).join(' on '))), ...t.hosts.flatMap((x) => x.addresses.map((a) => h('option', { value: a }, x.name)))]);
  if (destinations) {
    replace(destinations, services.services.slice(0, OFFERED).flatMap((sv) => [
      h('option', { value: `service/${sv.namespace}/${sv.name}:${sv.portName || sv.port}` }, `${sv.protocol} ${sv.clusterIP}:${sv.port}`),
      ...(sv.nodePort ? t.nodes.filter((n) => n.addresses.length > 0).slice(0, 3).map((n) => h('option', { value: join(n.addresses[0], sv.nodePort) }, `node port of ${sv.service} on ${n.name}`)) : []),
      ...(sv.loadBalancerIPs ?? []).map((ip) => h('option', { value: join(ip, sv.port) }, `load balancer of ${sv.service}`)),
    ]));
  }
  if (nodes) nodes.append(...t.nodes.map((n) => h('option', { value: n.name }, n.name)));
  return t;
}

/** join formats an IP and a port as one address. */
export const join = (ip, port) => (ip.includes(':') ? `[${ip}]:${port}` : `${ip}:${port}`);

/** field is an input with its label and a place for its error. */
export function field(name, label, input, hint) {
  input.id = `field-${name}`;
  input.name = name;
  input.setAttribute('aria-describedby', `field-${name}-wrong`);
  return h('div', { class: 'field-box', 'data-field': name },
    h('label', { for: input.id }, label), input, hint && h('p', { class: 'hint' }, hint),
    h('p', { class: 'wrong', id: `field-${name}-wrong`, role: 'alert', hidden: true }));
}

/** blame shows an API's error at the field that it names, or else at the form's end. */
export function blame(form, error) {
  for (const wrong of form.querySelectorAll('.wrong')) { wrong.hidden = true; wrong.textContent = ''; }
  for (const input of form.querySelectorAll('[aria-invalid]')) input.removeAttribute('aria-invalid');
  if (!error) return;
  const box = [...form.querySelectorAll('.field-box')].find((b) => b.dataset.field === error.field);
  const wrong = (box ?? form).querySelector(box ? '.wrong' : '.wrong.all');
  wrong.textContent = error.message;
  wrong.hidden = false;
  const input = box?.querySelector('input, select');
  input?.setAttribute('aria-invalid', 'true');
  input?.focus();
}
