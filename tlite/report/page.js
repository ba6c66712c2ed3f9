for (const view of document.querySelectorAll(".heads")) {
  const groups = JSON.parse(view.querySelector("script").textContent);
  const state = {group: 0, layer: 0, head: 0, query: null, pinned: false};
  const MASKED = -1, ROW = 19, LETTER = 7.9;

  const add = (parent, name, attributes = {}, text = null) => {
    const space = name === "svg" || parent.namespaceURI.endsWith("svg");
    const node = space ? document.createElementNS("http://www.w3.org/2000/svg", name)
                       : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== null) node.textContent = text;
    parent.append(node);
    return node;
  };
  const format = weight => weight === MASKED ? "masked" : (weight / 1000).toFixed(3);
  const maximum = table => Math.max(1, ...table.flat());
  const longest = tokens => Math.max(...tokens.map(token => [...token].length));

  // The picker: two or three lists, and a small map of every head that can be clicked.
  const picker = add(view, "p", {class: "picker"});
  const choice = (label, key) => {
    const select = add(add(picker, "label", {}, label + " "), "select", {"data-of": key});
    select.addEventListener("change", () => choose({[key]: Number(select.value)}));
    return select;
  };
  const lists = {group: choice("attention", "group"), layer: choice("block", "layer"),
                 head: choice("head", "head")};
  lists.group.parentNode.hidden = groups.length < 2;
  groups.forEach((group, index) => add(lists.group, "option", {value: index}, group.name));
  const thumbs = add(view, "div", {class: "thumbs", role: "toolbar", "aria-label": "heads"});
  const readout = add(view, "p", {class: "readout", "aria-live": "polite"});
  const lines = add(view, "div", {class: "lines"});

  const thumbnail = (canvas, table) => {
    const [height, width] = [table.length, table[0].length];
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d"), pixels = context.createImageData(width, height);
    const limit = maximum(table);
    table.flat().forEach((weight, index) => {
      const colour = weight === MASKED ? [128, 128, 128, 70]
                                       : [45, 125, 210, Math.round(255 * weight / limit)];
      pixels.data.set(colour, 4 * index);
    });
    context.putImageData(pixels, 0, 0);
  };

  const fillPicker = () => {  // the parts that depend on the group alone
    const {weights, blocks} = groups[state.group];
    for (const [key, names] of [["layer", blocks], ["head", weights[0].map((_, h) => h)]]) {
      lists[key].replaceChildren();
      names.forEach((name, index) => add(lists[key], "option", {value: index}, name));
    }
    thumbs.replaceChildren();
    weights.forEach((layer, l) => {
      const row = add(thumbs, "div");
      add(row, "span", {}, `block ${blocks[l]}`);
      layer.forEach((table, h) => {
        const name = `block ${blocks[l]}, head ${h}`;
        const button = add(row, "button", {type: "button", title: name, "aria-label": name});
        thumbnail(add(button, "canvas"), table);
        button.addEventListener("click", () => choose({layer: l, head: h}));
      });
    });
  };

  const drawLines = () => {
    const {queries, keys} = groups[state.group], table = tableOf();
    const [left, right] = [queries, keys].map(t => LETTER * Math.max(longest(t), 5) + 12);
    const between = 130, number = 56, width = left + between + right + number;
    lines.replaceChildren();
    const rows = 1 + Math.max(queries.length, keys.length);
    const svg = add(lines, "svg", {width, height: ROW * rows});
    const pattern = add(add(svg, "defs"), "pattern", {id: "hatched", width: 5, height: 5,
      patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)"});
    add(pattern, "line", {class: "hatch", x1: 0, y1: 0, x2: 0, y2: 5});
    add(svg, "text", {class: "dim", x: left - 6, y: ROW / 2, "text-anchor": "end"}, "query");
    add(svg, "text", {class: "dim", x: left + between + 6, y: ROW / 2}, "key");
    const y = index => ROW * (index + 1.5);
    table.forEach((row, query) => row.forEach((weight, key) => {
      if (weight < 20 || (state.query !== null && state.query !== query)) return;
      const [x1, x2] = [left, left + between], middle = (x1 + x2) / 2;
      add(svg, "path", {class: "line", "stroke-width": (0.6 + 2.4 * weight / 1000).toFixed(2),
        "stroke-opacity": (0.1 + 0.9 * weight / 1000).toFixed(3),
        d: `M${x1},${y(query)}C${middle},${y(query)} ${middle},${y(key)} ${x2},${y(key)}`});
    }));
    keys.forEach((token, key) => {
      const group = add(svg, "g", {class: "key"}), x = left + between;
      if (state.query !== null) {
        const weight = table[state.query][key], box = {x, y: y(key) - ROW / 2 + 1, width: right,
          height: ROW - 2, rx: 3, "data-weight": format(weight)};
        add(group, "rect", weight === MASKED ? {class: "masked", ...box}
          : {class: "weight", "fill-opacity": (0.75 * weight / 1000).toFixed(3), ...box});
        add(group, "text", {class: "dim", x: x + right + 6, y: y(key)},
            weight === MASKED ? "masked" : format(weight));
      }
      add(group, "text", {x: x + 6, y: y(key)}, token);
    });
    queries.forEach((token, query) => {
      const chosen = state.query === query ? " chosen" : "";
      const group = add(svg, "g", {class: "query" + chosen});
      const box = {x: 1, y: y(query) - ROW / 2 + 1, width: left - 1, height: ROW - 2, rx: 3};
      add(group, "rect", box);
      add(group, "text", {x: left - 6, y: y(query), "text-anchor": "end"}, token);
      group.addEventListener("mouseenter",
        () => state.pinned || state.query === query || choose({query}));
      group.addEventListener("click", () => {
        const again = state.pinned && state.query === query;
        choose({query: again ? null : query, pinned: !again});
      });
    });
  };
  lines.addEventListener("mouseleave", () => state.pinned || choose({query: null}));
  const tableOf = () => groups[state.group].weights[state.layer][state.head];

  const updateReadout = () => {
    const {queries, keys, blocks} = groups[state.group];
    const head = `Block ${blocks[state.layer]}, head ${state.head}`;
    if (state.query === null) {
      readout.textContent = `${head}: a line for each weight of 0.02 or more, the stronger the ` +
        "larger. Point at a token on the left to see its weights alone; click to pin it.";
      return;
    }
    const row = tableOf()[state.query], allowed = row.filter(weight => weight !== MASKED).length;
    const best = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, Math.min(3, allowed));
    const most = best.map(key => `${keys[key]} (${format(row[key])})`).join(", ");
    const masked = allowed < keys.length
      ? ` It may attend to ${allowed} of ${keys.length} keys; the others are masked (hatched).` : "";
    const token = `token ${state.query}, ${queries[state.query]}`;
    readout.textContent = `${head}: ${token}, attends most to ${most}.${masked}`;
  };

  const choose = changes => {
    Object.assign(state, changes);
    if ("group" in changes) {
      Object.assign(state, {query: null, pinned: false, layer: 0, head: 0});
      fillPicker();
    }
    for (const key of ["group", "layer", "head"]) lists[key].value = state[key];
    const heads = groups[state.group].weights[0].length;
    thumbs.querySelectorAll("button").forEach((button, index) => {
      button.setAttribute("aria-pressed", index === state.layer * heads + state.head);
    });
    drawLines();
    updateReadout();
  };
  choose({group: 0});
}
