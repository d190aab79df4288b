// Suggestions for fields: names and addresses of the cluster.

import { get } from './api.js';
import { h } from './dom.js';

/** OFFERED are suggestions in a list, at most: browsers slow down with more. */
export const OFFERED = 500;

/** services are those that are suggested. */
export const services = async (signal) => (await get(`/v1/services?limit=${OFFERED}`, signal)).services;

/** places are options for pods. */
export const places = (pods, prefix = '') => pods.slice(0, OFFERED).map((p) => h('option', { value: prefix + p.name }, [p.addresses[0], p.node].filter(Boolean).join(' on ')));

/** join formats an IP and a port as one address. */
export const join = (ip, port) => (ip.includes(':') ? `[${ip}]:${port}` : `${ip}:${port}`);
