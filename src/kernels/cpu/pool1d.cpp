// temporary: double only through the reference
#include "kernels/cpu/pool1d.h"
#include <cstring>
#include <vector>
#include <cmath>
#include "kernels/reference/pool1d.h"
namespace contextpool::cpu {
namespace {
double get(Type t,const void*p,int64_t k){ switch(t){case Type::f64:return ((const double*)p)[k];case Type::f32:return ((const float*)p)[k];case Type::bf16:{uint32_t u=uint32_t(((const uint16_t*)p)[k])<<16;float f;std::memcpy(&f,&u,4);return f;}case Type::f16:{_Float16 h;std::memcpy(&h,(const uint16_t*)p+k,2);return (double)(float)h;}}return 0;}
void put(Type t,void*p,int64_t k,double v){ switch(t){case Type::f64:((double*)p)[k]=v;break;case Type::f32:((float*)p)[k]=(float)v;break;case Type::bf16:{float f=(float)v;uint32_t u;std::memcpy(&u,&f,4);u+=0x7fff+((u>>16)&1);((uint16_t*)p)[k]=(uint16_t)(u>>16);break;}case Type::f16:{_Float16 h=(_Float16)(float)v;std::memcpy((uint16_t*)p+k,&h,2);break;}}}
struct Row{std::vector<double>x,l,s;reference::Pool1d r;};
Row row(const Pool1d&in,int64_t b){Row w;Type f=in.type==Type::f64?Type::f64:Type::f32;for(int64_t n=0;n<in.tokens;n++)for(int64_t d=0;d<in.channels;d++)w.x.push_back(get(in.type,in.x,b*in.x_batch_stride+n*in.x_token_stride+d));for(int64_t n=0;n<in.tokens;n++)w.l.push_back(get(f,in.log_weight,b*in.tokens+n));for(int64_t n=0;n<in.targets;n++)w.s.push_back(get(f,in.sigma,b*in.targets+n));w.r={in.tokens,in.targets,in.channels,in.causal,w.x.data(),w.l.data(),w.s.data()};return w;}
}
void pool1d(const Pool1d&in,void*y,const Parallel&){for(int64_t b=0;b<in.batch;b++){Row w=row(in,b);std::vector<double>o(in.channels);for(int64_t m=0;m<in.targets;m++){reference::pool1d(w.r,m,o.data());for(int64_t d=0;d<in.channels;d++)put(in.type,y,(b*in.targets+m)*in.channels+d,o[d]);}}}
void pool1d_backward(const Pool1d&in,const void*dy,void*dx,void*dl,void*ds,const Parallel&){Type f=in.type==Type::f64?Type::f64:Type::f32;for(int64_t b=0;b<in.batch;b++){Row w=row(in,b);std::vector<double>g(in.channels),ox(in.tokens*in.channels),ol(in.tokens);for(int64_t m=0;m<in.targets;m++){for(int64_t d=0;d<in.channels;d++)g[d]=get(in.type,dy,(b*in.targets+m)*in.channels+d);double s;reference::pool1d_backward(w.r,m,g.data(),ox.data(),ol.data(),&s);put(f,ds,b*in.targets+m,s);}for(int64_t k=0;k<in.tokens*in.channels;k++)put(in.type,dx,b*in.tokens*in.channels+k,ox[k]);for(int64_t k=0;k<in.tokens;k++)put(f,dl,b*in.tokens+k,ol[k]);}}
}
