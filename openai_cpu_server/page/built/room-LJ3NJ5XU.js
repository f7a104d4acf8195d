import{g as o}from"./chunk-GESUJ5XJ.js";import"./chunk-OOJM4CTU.js";function t(){return o`<div class="empty"><h1>Control room</h1></div>`}export{t as ControlRoom};
