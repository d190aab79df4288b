// Legs of ways on the map: curves that are level at both ends.

const LEVEL = 0.5; // how far a curve goes on level, as a share of its length

export class Leg {
  constructor(a, b) {
    const bend = (b.x - a.x) * LEVEL;
    this.points = [a, { x: a.x + bend, y: a.y }, { x: b.x - bend, y: b.y }, b];
    this.straight = a.y === b.y;
    this.length = Math.hypot(b.x - a.x, b.y - a.y) + 1;
  }

  at(t) {
    const u = 1 - t, [a, b, c, d] = this.points;
    const mix = (k) => u * u * u * a[k] + 3 * u * u * t * b[k] + 3 * u * t * t * c[k] + t * t * t * d[k];
    return { x: mix('x'), y: mix('y') };
  }

  get path() {
    const [a, b, c, d] = this.points.map((p) => `${p.x.toFixed(1)} ${p.y.toFixed(1)}`);
    return `M${a}C${b} ${c} ${d}`;
  }
}
