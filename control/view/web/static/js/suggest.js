// Suggestions for address fields: pods, machines and services by their names, as the API
// accepts them.

import { get, topology } from './api.js';
import { h, replace } from './dom.js';

const OFFERED = 500; // suggestions in a list, at most: browsers slow down with more

/** places fills two lists of suggestions and a list of nodes, when they are loaded. */
export async function places({ sources, destinations, nodes }) {
  const [t, services] = await Promise.all([topology(), get(`/v1/services?limit=${OFFERED}`)]);
  if (sources) replace(sources, [...t.pods.slice(0, OFFERED).map((p) => h('option', { value: `pod/${p.name}` }, [p.addresses[0], p.node].filter(Boolean).join(' on '))), ...t.hosts.flatMap((x) => x.addresses.map((a) => h('option', { value: a }, x.name)))]);
  if (destinations) {
    replace(destinations, services.services.flatMap((sv) => [
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
