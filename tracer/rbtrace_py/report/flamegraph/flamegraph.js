(function () {
  'use strict';
  const svg = document.currentScript.closest('svg');
  const data = JSON.parse(svg.querySelector('.data').textContent);
  const NS = 'http://www.w3.org/2000/svg';
  const {row, pad, top, letter, narrowest, columns} = data.layout;
  const part = name => svg.querySelector('.' + name);
  const frames = part('frames');
  const details = part('details');
  const state = {tree: null, zoom: null, flipped: false, reversed: false,
    search: null, focus: null, width: data.layout.width};

  // --- the tree: nodes {label, weights, colour, gathered, parent, children, depth}

  function node(parent, label, weights, colour, gathered) {
    const made = {label, weights, colour, gathered, parent, children: [],
      depth: parent ? parent.depth + 1 : 0, found: false};
    if (parent) parent.children.push(made);
    return made;
  }

  function read() {
    const open = [];
    let root = null;
    const size = 3 + columns + (columns > 1 ? 1 : 0);
    for (let at = 0; at < data.nodes.length; at += size) {
      while (open.length && open[open.length - 1].left === 0) open.pop();
      const above = open[open.length - 1];
      if (above) above.left--;
      const [label, count, gathered] = data.nodes.slice(at, at + 3);
      const weights = data.nodes.slice(at + 3, at + 3 + columns);
      const colour = columns > 1 ? data.colours[data.nodes[at + size - 1]]
        : label < 0 ? data.grey : data.colours[label];
      const made = node(above && above.node, label, weights, colour, gathered);
      root = root || made;
      open.push({node: made, left: count});
    }
    return root;
  }

  function each(from, visit) {
    const waiting = [from];
    while (waiting.length) {
      const one = waiting.pop();
      visit(one);
      for (let i = one.children.length - 1; i >= 0; i--) waiting.push(one.children[i]);
    }
  }

  // The innermost frame first: every node's own weight, along its way to the root.
  function reverse(root) {
    const found = node(null, -1, root.weights.slice(), data.grey, 0);
    const below = new Map();
    each(root, one => {
      const own = one.weights[0] - one.children.reduce((sum, c) => sum + c.weights[0], 0);
      if (!one.parent || own <= 0) return;
      let at = found;
      for (let from = one; from.parent; from = from.parent) {
        if (!below.has(at)) below.set(at, new Map());
        const known = below.get(at);
        if (!known.has(from.label)) {
          known.set(from.label, node(at, from.label, [0], from.colour, 0));
        }
        at = known.get(from.label);
        at.weights[0] += own;
        at.gathered += from.gathered;
      }
    });
    const text = one => one.label < 0 ? '\uffff' : data.labels[one.label][1];
    each(found, one => one.children.sort((a, b) => text(a) < text(b) ? -1 : 1));
    return found;
  }

  const root = read();
  state.tree = state.zoom = root;

  // --- words

  function share(one) {
    let sum = 0;
    let known = 0;
    root.weights.forEach((total, column) => {
      if (!total) return;
      known++;
      sum += one.weights[column] / total;
    });
    return known ? sum / known : 0;
  }

  const percent = number => (100 * number).toFixed(2) + ' %';

  function amount(weight) {
    if (data.unit === 'bytes') {
      const names = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
      let place = 0;
      while (place < names.length - 1 && weight >= 1023.5 * 1024 ** place) place++;
      const size = weight / 1024 ** place;
      const text = size >= 1000 || !place ? Math.round(size) : size.toPrecision(3);
      return text.toLocaleString('en-US') + ' ' + names[place];
    }
    if (data.unit !== 'ns') {
      const words = {calls: ' call', events: ' event', weight: ''};
      const word = words[data.unit] ?? ' sample';
      return weight.toLocaleString('en-US') + word + (word && weight !== 1 ? 's' : '');
    }
    for (const [size, name] of [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs']]) {
      if (weight >= size) return (weight / size).toPrecision(3) + ' ' + name;
    }
    return weight + ' ns';
  }

  function whole(one) {
    if (one.label >= 0) return data.labels[one.label][1];
    if (!one.parent) return 'all';
    return one.gathered.toLocaleString('en-US') + ' narrow frames';
  }

  const short = one => one.label < 0 ? whole(one) : data.labels[one.label][0];

  function about(one) {
    if (columns > 1) {
      const [before, after] = one.weights.map(
        (weight, column) => root.weights[column] ? weight / root.weights[column] : 0);
      const change = 100 * (after - before);
      return whole(one) + ' (' + percent(before) + ' → ' + percent(after) + ', ' +
        (change < 0 ? '−' : '+') + Math.abs(change).toFixed(2) + ')';
    }
    return whole(one) + ' (' + amount(one.weights[0]) + ', ' + percent(share(one)) + ')';
  }

  function wide(text) {
    let size = 0;
    for (const c of text) size += c.codePointAt(0) >= 0x1100 ? 2 : 1;
    return size;
  }

  function fit(one, room) {
    const most = Math.floor((room - 6) / letter);
    if (most < 3) return '';
    if (wide(whole(one)) <= most) return whole(one);
    if (wide(short(one)) <= most) return short(one);
    let text = '';
    let size = 0;
    for (const c of short(one)) {
      size += wide(c);
      if (size > most - 1) break;
      text += c;
    }
    return text + '…';
  }

  // --- drawing

  function make(name, attributes, text) {
    const made = document.createElementNS(NS, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Who is seen: those from the root to the zoomed one, and what is above that.
  function places() {
    const found = [];
    const room = state.width - 2 * pad;
    for (let one = state.zoom.parent; one; one = one.parent) {
      found.unshift({node: one, x: 0, size: room, above: true});
    }
    const scale = share(state.zoom) ? room / share(state.zoom) : 0;
    const waiting = [{node: state.zoom, x: 0, size: room}];
    let narrow = 0;
    while (waiting.length) {
      const place = waiting.pop();
      if (place.size < narrowest) {
        each(place.node, one => { narrow += one.gathered || 1; });
        continue;
      }
      found.push(place);
      let x = place.x;
      const next = [];
      for (const child of place.node.children) {
        const size = share(child) * scale;
        next.push({node: child, x, size});
        x += size;
      }
      waiting.push(...next.reverse());
    }
    return {found, narrow};
  }

  function draw() {
    const {found, narrow} = places();
    const depth = found.reduce((most, place) => Math.max(most, place.node.depth), 0);
    const height = (depth + 1) * row;
    frames.replaceChildren();
    for (const place of found) {
      const y = top + (state.flipped ? depth - place.node.depth : place.node.depth) * row;
      frames.append(drawn(place, y));
    }
    place('details', top + height + 20);
    place('narrow', top + height + 38);
    part('narrow').textContent = narrow
      ? narrow.toLocaleString('en-US') + ' frames are too narrow to be drawn' : '';
    svg.setAttribute('height', top + height + 50);
    svg.setAttribute('width', state.width);
    svg.setAttribute('viewBox', '0 0 ' + state.width + ' ' + (top + height + 50));
    part('matched').setAttribute('x', state.width - pad);
    part('page').setAttribute('width', state.width);
    part('page').setAttribute('height', top + height + 50);
  }

  const place = (name, y) => part(name).setAttribute('y', y);

  function drawn({node: one, x, size, above}, y) {
    const group = make('g', {role: 'button', tabindex: -1, 'aria-label': about(one)});
    if (above) group.classList.add('above');
    if (one.found) group.classList.add('found');
    group.append(make('title', {}, about(one)));
    group.append(make('rect', {x: pad + x, y, width: size, height: row - 1,
      fill: one.colour}));
    const text = fit(one, size);
    if (text) group.append(make('text', {x: pad + x + 3, y: y + row - 5}, text));
    group.addEventListener('click', () => { zoom(one); });
    group.addEventListener('mouseover', () => { details.textContent = about(one); });
    group.addEventListener('focus', () => { attend(one); });
    if (one === (state.focus || state.zoom)) group.setAttribute('tabindex', 0);
    one.drawn = group;
    return group;
  }

  // --- what one can do

  function attend(one) {
    state.focus = one;
    details.textContent = about(one);
  }

  function zoom(one) {
    state.zoom = one;
    attend(one);
    draw();
    one.drawn.focus();
  }

  function find(text) {
    const box = part('search');
    box.classList.remove('wrong');
    try {
      state.search = text ? new RegExp(text, 'i') : null;
    } catch (error) {
      box.classList.add('wrong');
      part('matched').textContent = 'not a regular expression';
      return;
    }
    let matched = 0;
    each(state.tree, one => {
      const inside = Boolean(one.parent && one.parent.inside);
      one.found = Boolean(state.search && one.label >= 0 &&
        state.search.test(whole(one)));
      one.inside = inside || one.found;
      if (one.found && !inside) matched += share(one);
    });
    part('matched').textContent = state.search ? 'matched ' + percent(matched) : '';
    draw();
  }

  function turn() {
    state.reversed = !state.reversed;
    state.tree = state.zoom = state.reversed ? reverse(root) : root;
    state.focus = null;
    part('reverse').setAttribute('aria-pressed', state.reversed);
    find(part('search').value);
    draw();
  }

  function flip() {
    state.flipped = !state.flipped;
    part('flip').setAttribute('aria-pressed', state.flipped);
    draw();
  }

  function reset() {
    part('search').value = '';
    find('');
    zoom(state.tree);
  }

  function move(key) {
    const one = state.focus || state.zoom;
    const outwards = state.flipped ? 'ArrowDown' : 'ArrowUp';
    const beside = one.parent ? one.parent.children : [one];
    const at = beside.indexOf(one);
    const shown = other => other && other.drawn && other.drawn.isConnected;
    const widest = () => one.children.filter(shown)
      .reduce((best, c) => !best || share(c) > share(best) ? c : best, null);
    const next = key === 'ArrowLeft' ? beside[at - 1]
      : key === 'ArrowRight' ? beside[at + 1]
        : key === outwards ? one.parent : widest();
    if (!shown(next)) return;
    one.drawn.setAttribute('tabindex', -1);
    next.drawn.setAttribute('tabindex', 0);
    attend(next);
    next.drawn.focus();
  }

  svg.addEventListener('keydown', event => {
    if (event.target === part('search')) {
      if (event.key === 'Escape') reset();
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith('Arrow')) move(event.key);
    else if (event.key === '/') part('search').focus();
    else if (event.key === 'Escape') reset();
    else if (event.key === 'f') flip();
    else if (event.key === 'r' && part('reverse')) turn();
    else if ((event.key === 'Enter' || event.key === ' ') && state.focus &&
      event.target.closest('.frames')) zoom(state.focus);
    else return;
    event.preventDefault();
  });

  function resize() {
    // Alone in a window it fills it; in a page its place is the page's business.
    if (document.documentElement === svg && window.innerWidth) {
      const seen = svg.clientWidth || window.innerWidth; // less than inner by a scrollbar
      state.width = Math.max(Math.min(seen, window.innerWidth) - 1, 720);
    }
    draw();
  }

  part('search').addEventListener('input', event => find(event.target.value));
  part('reset').addEventListener('click', reset);
  part('flip').addEventListener('click', flip);
  if (part('reverse')) part('reverse').addEventListener('click', turn);
  part('controls-box').removeAttribute('display');
  window.addEventListener('resize', resize);
  resize();
})();
