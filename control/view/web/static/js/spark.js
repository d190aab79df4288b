// A sparkline: the last minute, one point for each second.

import { s } from './dom.js';

const WIDTH = 116, HEIGHT = 26;

export class Spark {
  constructor() {
    this.area = s('path', { class: 'area' });
    this.line = s('path', { class: 'line' });
    this.marks = s('path', { class: 'marks' });
    this.element = s('svg', { class: 'spark', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, 'aria-hidden': 'true', preserveAspectRatio: 'none' }, this.area, this.marks, this.line);
  }

  draw(values) {
    const most = Math.max(1, ...values);
    const point = (v, i) => `${(i * WIDTH / (values.length - 1)).toFixed(1)} ${(HEIGHT - 1 - v / most * (HEIGHT - 3)).toFixed(1)}`;
    const d = `M${values.map(point).join('L')}`;
    if (d === this.drawn) return;
    this.drawn = d;
    this.line.setAttribute('d', d);
    this.area.setAttribute('d', `${d}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z`);
  }

  /** mark draws upright lines at positions from 0, the oldest point, to 1, the newest. */
  mark(positions) {
    this.marks.setAttribute('d', positions.map((x) => `M${(x * WIDTH).toFixed(1)} 0V${HEIGHT}`).join(''));
  }
}
