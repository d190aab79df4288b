// The units of a course, by chapter, with their states.

import { h } from './dom.js';

const states = { new: '', begun: 'begun', finished: 'finished' };
const tones = { begun: 'wait', finished: 'good' };

/** unitList lists the units. start(id) begins one. */
export function unitList(lesson, start) {
  const chapters = new Map();
  for (const u of lesson.units) chapters.set(u.chapter, [...(chapters.get(u.chapter) ?? []), u]);
  const item = (u) => h('li', null, h('button', { type: 'button', 'data-unit': u.id, 'aria-current': u.id === lesson.unit ? 'true' : null, onclick: () => start(u.id) },
    h('span', { class: 'number' }, u.id), h('span', { class: 'name' }, u.title), h('span', { class: 'minutes' }, `${u.minutes} min`),
    u.id === lesson.unit ? h('span', { class: 'pill', 'data-tone': 'pass' }, 'open') : states[u.state] && h('span', { class: 'pill', 'data-tone': tones[u.state] }, states[u.state])));
  return [...chapters].map(([title, units]) => {
    const finished = units.filter((u) => u.state === 'finished').length;
    return h('section', null, h('h2', null, `${units[0].id.split('.')[0]} ${title}`), h('p', { class: 'hint' }, `${finished} of ${units.length} finished`), h('ol', null, units.map(item)));
  });
}
